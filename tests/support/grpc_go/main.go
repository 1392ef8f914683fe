// A client of the gRPC endpoint as grpc-go makes one; tests/integration/test_server_grpc_go.py says what it sends.
//
// grpc-go's HTTP/2 is not that of gRPC's other clients: it has its own flow control, keepalive pings and drain.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	service  = "/inference.GRPCInferenceService/"
	infer    = service + "ModelInfer"
	live     = service + "ServerLive"
	stream   = service + "ModelStreamInfer"
	patience = 5 * time.Minute // a test fails after it
	parallel = 64
	most     = 64 << 20 // bytes of a message
	idle     = 32 * time.Second
	ping     = 10 * time.Second // the shortest interval that grpc-go allows
)

// input is what the test sends, in JSON.
type input struct {
	Address string
	Small   []byte // messages of ModelInfer
	Large   []byte
	Slow    []byte // of a server whose answers to it take long
}

// raw sends and receives messages as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

type client struct {
	connection *grpc.ClientConn
}

func connect(address string, options ...grpc.DialOption) client {
	options = append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(most)))
	connection, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		panic(err)
	}
	return client{connection}
}

func (c client) call(ctx context.Context, method string, sent []byte, options ...grpc.CallOption) ([]byte, error) {
	var received []byte
	err := c.connection.Invoke(ctx, method, &sent, &received, options...)
	return received, err
}

// open begins a call and never ends it.
func (c client) open(ctx context.Context, method string) (grpc.ClientStream, error) {
	description := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	return c.connection.NewStream(ctx, description, method)
}

func lasting() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	_ = cancel // the program ends before
	return ctx
}

func print(name string, value any) {
	line, err := json.Marshal(map[string]any{"name": name, "value": value})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func printCall(name string, received []byte, err error) {
	if err != nil {
		print(name, status.Code(err).String()+": "+status.Convert(err).Message())
		return
	}
	print(name, received)
}

// callAll makes calls of every kind.
func callAll(in input) {
	c := connect(in.Address)
	defer c.connection.Close()
	received, err := c.call(lasting(), live, nil)
	printCall("live", received, err)
	received, err = c.call(lasting(), infer, in.Small)
	printCall("small", received, err)
	received, err = c.call(lasting(), infer, in.Small, grpc.UseCompressor(gzip.Name))
	printCall("gzip", received, err)
	received, err = c.call(lasting(), infer, in.Large)
	printCall("large", received, err)
	received, err = c.call(lasting(), infer, in.Large, grpc.UseCompressor(gzip.Name))
	printCall("large gzip", received, err)

	unended, err := c.open(lasting(), stream)
	if err == nil {
		err = unended.RecvMsg(&received)
	}
	printCall("stream", received, err)
	print("parallel", callMany(c, in.Small))
}

// giveUp makes calls whose answers it does not wait for.
func giveUp(in input) {
	c := connect(in.Address)
	defer c.connection.Close()
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	received, err := c.call(short, infer, in.Slow)
	cancel()
	printCall("deadline", received, err)
	cancelled, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	received, err = c.call(cancelled, infer, in.Slow)
	printCall("cancelled", received, err)
	received, err = c.call(lasting(), live, nil)
	printCall("afterwards", received, err)
}

// callMany makes calls side by side on one connection, and returns how many succeeded.
func callMany(c client, sent []byte) int64 {
	var group sync.WaitGroup
	var succeeded atomic.Int64
	for range parallel {
		group.Go(func() {
			for range parallel {
				if _, err := c.call(lasting(), infer, sent); err == nil {
					succeeded.Add(1)
				}
			}
		})
	}
	group.Wait()
	return succeeded.Load()
}

// rest leaves a connection idle but for keepalive pings; the server must neither end it for them nor miss one.
func rest(in input) {
	c := connect(in.Address, grpc.WithIdleTimeout(0), grpc.WithKeepaliveParams(
		keepalive.ClientParameters{Time: ping, Timeout: ping, PermitWithoutStream: true}))
	defer c.connection.Close()
	received, err := c.call(lasting(), live, nil)
	printCall("before", received, err)
	ctx, cancel := context.WithTimeout(context.Background(), idle)
	defer cancel()
	print("ended", c.connection.WaitForStateChange(ctx, connectivity.Ready))
	received, err = c.call(lasting(), live, nil)
	printCall("after", received, err)
}

// drain has a call, and another that its client does not end, when the server is stopped, which the test does once it reads "running".
func drain(in input) {
	c := connect(in.Address)
	defer c.connection.Close()
	received, err := c.call(lasting(), live, nil)
	printCall("before", received, err)
	if _, err = c.open(lasting(), infer); err != nil {
		panic(err)
	}
	done := make(chan struct{})
	go func() {
		received, err := c.call(lasting(), infer, in.Slow)
		printCall("slow", received, err)
		close(done)
	}()
	print("running", true)
	<-done
	print("ended", c.connection.WaitForStateChange(lasting(), connectivity.Ready))
	_, err = c.call(lasting(), live, nil)
	print("afterwards", status.Code(err).String())
}

func main() {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		panic(err)
	}
	map[string]func(input){"all": callAll, "give up": giveUp, "rest": rest, "drain": drain}[os.Args[1]](in)
}
