package main

import (
	"errors"
	"io"
	"net"
	"strings"
)

// forward copies bytes between a listener and a target, each `tcp:HOST:PORT` or `unix:PATH`.
//
// Two of them carry the API out of the cluster's network namespace over a unix socket, so that no
// route leads in or out.
// usage: forward LISTEN TARGET
func forward(arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("usage: forward LISTEN TARGET")
	}
	network, address, _ := strings.Cut(arguments[0], ":")
	targetNetwork, targetAddress, _ := strings.Cut(arguments[1], ":")
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	for {
		incoming, err := listener.Accept()
		if err != nil {
			return err
		}
		go join(incoming, targetNetwork, targetAddress)
	}
}

func join(incoming net.Conn, network, address string) {
	defer incoming.Close()
	outgoing, err := net.Dial(network, address)
	if err != nil {
		return
	}
	defer outgoing.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		done <- struct{}{}
	}
	go pipe(outgoing, incoming)
	go pipe(incoming, outgoing)
	<-done
	<-done
}
