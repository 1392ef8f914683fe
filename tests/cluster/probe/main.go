// Command probe is what the cluster's tests run in pods: a client and a server small enough to
// build in a second, out of Go's standard library alone.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	arguments := append(os.Args[1:], "", "", "")
	var err error
	switch arguments[0] {
	case "serve": // ADDRESS FOLDER
		fmt.Println("serving")
		err = http.ListenAndServe(arguments[1], http.FileServer(http.Dir(arguments[2])))
	case "get": // URL
		err = get(&http.Client{Timeout: 5 * time.Second}, arguments[1], "")
	case "api": // PATH, as the pod's service account
		err = callAPI(arguments[1])
	case "dial": // ADDRESS
		_, err = net.DialTimeout("tcp", arguments[1], 20*time.Second)
	case "write": // FILE TEXT
		err = os.WriteFile(arguments[1], []byte(arguments[2]), 0o644)
	case "environment":
		for _, each := range os.Environ() {
			fmt.Println(each)
		}
	default:
		err = fmt.Errorf("unknown verb %q", arguments[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func callAPI(path string) error {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	client := &http.Client{Timeout: 10 * time.Second, Transport: transport}
	return get(client, "https://kubernetes.default.svc"+path, "Bearer "+string(token))
}

func get(client *http.Client, url, authorization string) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
