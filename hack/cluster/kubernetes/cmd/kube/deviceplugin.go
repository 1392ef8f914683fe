package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// simulatedDevices offers a number of devices without hardware behind them: scheduling is real,
// the device is not.
type simulatedDevices struct {
	plugin.UnimplementedDevicePluginServer
	resource string
	count    int
}

func (d *simulatedDevices) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (d *simulatedDevices) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	devices := make([]*plugin.Device, d.count)
	for index := range devices {
		id := fmt.Sprintf("%s-%d", strings.ReplaceAll(d.resource, "/", "-"), index)
		devices[index] = &plugin.Device{ID: id, Health: plugin.Healthy}
	}
	if err := stream.Send(&plugin.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (d *simulatedDevices) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

// runDevicePlugin offers RESOURCE=COUNT pairs to the kubelet whose plugin folder is given.
//
// A kubelet that restarts empties the folder: the plugin then registers anew, which keeps the
// capacity. (A capacity patched into a node's status would be lost.)
// usage: device-plugin FOLDER RESOURCE=COUNT...
func runDevicePlugin(arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("usage: device-plugin FOLDER RESOURCE=COUNT...")
	}
	folder := arguments[0]
	failures := make(chan error)
	for _, pair := range arguments[1:] {
		resource, number, _ := strings.Cut(pair, "=")
		count, err := strconv.Atoi(number)
		if err != nil || count < 0 {
			return fmt.Errorf("%q is not RESOURCE=COUNT", pair)
		}
		go func() { failures <- serveDevices(folder, &simulatedDevices{resource: resource, count: count}) }()
	}
	return <-failures
}

func serveDevices(folder string, devices *simulatedDevices) error {
	endpoint := strings.NewReplacer("/", "-", ".", "-").Replace(devices.resource) + ".sock"
	socket := filepath.Join(folder, endpoint)
	for {
		_ = os.Remove(socket)
		listener, err := net.Listen("unix", socket)
		if err != nil {
			time.Sleep(time.Second) // the kubelet has not made its folder yet
			continue
		}
		server := grpc.NewServer()
		plugin.RegisterDevicePluginServer(server, devices)
		go func() { _ = server.Serve(listener) }()
		if err := register(folder, endpoint, devices.resource); err == nil {
			waitUntilGone(socket)
		} else {
			time.Sleep(time.Second)
		}
		server.Stop()
	}
}

func register(folder, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix:"+filepath.Join(folder, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}

func waitUntilGone(path string) {
	for {
		if _, err := os.Stat(path); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}
