package main

import (
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
)

const region = "eu-central-1"

// serveS3 serves the folders of root/s3 as buckets; requests are signed by the one account.
func serveS3(root string) (string, error) {
	// beside the files, since not every file system has extended attributes
	folder := filepath.Join(root, "attributes")
	attributes, err := meta.NewSideCar(folder)
	if err != nil {
		return "", err
	}
	options := posix.PosixOpts{SideCarDir: folder, ForceNoTmpFile: true}
	backend, err := posix.New(filepath.Join(root, "s3"), attributes, options)
	if err != nil {
		return "", err
	}
	account := auth.Account{Access: username, Secret: password, Role: auth.RoleAdmin}
	listening := make(chan struct{})
	address, err := freeAddress()
	if err != nil {
		return "", err
	}
	server, err := s3api.New(
		backend,
		middlewares.RootUserConfig{Access: username, Secret: password},
		region,
		auth.NewIAMServiceSingle(account),
		nil, nil, nil, nil,
		s3api.WithQuiet(),
		s3api.WithKeepAlive(),
		s3api.WithConcurrencyLimiter(64, 64),
		s3api.WithOnListen(func() { close(listening) }),
	)
	if err != nil {
		return "", err
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ServeMultiPort([]string{address}) }()
	select {
	case <-listening:
		return "http://" + address, nil
	case err := <-failed:
		return "", err
	case <-time.After(20 * time.Second):
		return "", fmt.Errorf("the S3 server does not listen on %s", address)
	}
}

// freeAddress names a port that nobody listens on: this server takes no listener.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
