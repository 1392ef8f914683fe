package main

import (
	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	metricsserver "sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

// metricsServer gives `kubectl top` and autoscalers their figures. It is a function of its own
// because the signal handler must only be set in the process that is a metrics-server.
func metricsServer() *cobra.Command {
	return metricsserver.NewMetricsServerCommand(genericapiserver.SetupSignalHandler())
}
