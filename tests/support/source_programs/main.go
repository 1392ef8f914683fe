// Real servers that the tests of sources read from, on free ports of the loopback interface: the S3
// API over a folder, and an OCI registry that asks for nothing, for a password or for a token.
//
// Prints one line of JSON with the addresses once all of them listen, and ends with its standard
// input, so that none outlives the tests that started it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
)

// The one account that every server knows.
const (
	username = "ann"
	password = "correct horse battery"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: source-servers FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "source-servers:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	root, err := filepath.Abs(folder) // one server changes the working directory
	if err != nil {
		return err
	}
	for _, folder := range []string{"s3", "attributes", "registry"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return err
		}
	}
	addresses, err := serveRegistries(root)
	if err != nil {
		return err
	}
	if addresses["s3"], err = serveS3(root); err != nil {
		return err
	}
	if addresses["s3_tls"], err = serveTLS(root, addresses["s3"]); err != nil {
		return err
	}
	line, err := json.Marshal(addresses)
	if err != nil {
		return err
	}
	fmt.Println(string(line))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// serve answers on a free port and returns its address.
func serve(handler http.Handler) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(listener, handler)
	return "http://" + listener.Addr().String(), nil
}
