// Reads objects as JSON and writes for each of them a line with what kstatus makes of it: the library
// of Kubernetes' SIG CLI, and Flux' fork, which Flux and Helm use.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	flux "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sig "sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type computed struct {
	SIG     string `json:"sig"`
	Flux    string `json:"flux"`
	Message string `json:"message"`
}

func main() {
	read, write := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var text json.RawMessage
		if err := read.Decode(&text); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		found, err := compute(text)
		if err != nil {
			log.Fatal(err)
		}
		if err := write.Encode(found); err != nil {
			log.Fatal(err)
		}
	}
}

func compute(text []byte) (*computed, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	fromSIG, err := sig.Compute(object)
	if err != nil {
		return nil, err
	}
	fromFlux, err := flux.Compute(object)
	if err != nil {
		return nil, err
	}
	return &computed{fromSIG.Status.String(), fromFlux.Status.String(), fromSIG.Message}, nil
}
