// Command pause holds a pod's namespaces. It is a program of its own because one runs in every pod:
// linked into kube it would cost each of them tens of megabytes.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// main reaps orphans, since it is PID 1 of its namespace, and ends when told to.
func main() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for received := range signals {
		if received != syscall.SIGCHLD {
			os.Exit(0)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}
