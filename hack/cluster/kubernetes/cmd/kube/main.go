// Command kube is every Kubernetes program that the local cluster needs, in one static binary.
//
// One binary links the shared packages once: a quarter of the size and of the build time of nine.
// It acts as the program that its first argument, or the name it was started by, names.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func cobraProgram(command func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(command())) }
}

func fallible(program func(arguments []string) error) func() {
	return func() {
		if err := program(os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
			os.Exit(1)
		}
	}
}

var programs = map[string]func(){
	"kube-apiserver":          cobraProgram(apiserver.NewAPIServerCommand),
	"kube-controller-manager": cobraProgram(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          cobraProgram(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-proxy":              cobraProgram(proxy.NewProxyCommand),
	// Not a signal context: the kubelet sets up its own, and a second one panics.
	"kubelet":        cobraProgram(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":        cobraProgram(kubectl.NewDefaultKubectlCommand),
	"metrics-server": cobraProgram(metricsServer),
	"etcd":           func() { etcdmain.Main(os.Args) },
	"helm":           runHelm,
	"pki":            fallible(makePKI),
	"forward":        fallible(forward),
	"device-plugin":  fallible(runDevicePlugin),
	"provisioner":    fallible(runProvisioner),
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, known := programs[name]; !known && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	program, known := programs[name]
	if !known {
		names := make([]string, 0, len(programs))
		for each := range programs {
			names = append(names, each)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "kube: no program %q; name one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	program()
}
