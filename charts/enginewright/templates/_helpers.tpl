{{- /* Name of everything that the release owns; cluster-scoped names must not clash between releases. */ -}}
{{- define "enginewright.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "enginewright.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "enginewright.labels" -}}
{{ include "enginewright.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The operator's settings: one JSON document. */ -}}
{{- define "enginewright.config" -}}
{{- $images := dict "cpu" (required "set images.runtime.cpu to the runtime image's variant `cpu`: build it from runtime_image/Containerfile and push it to a registry that your nodes pull from" .Values.images.runtime.cpu) -}}
{{- range $variant := list "openvino" "gpu" "rtx" -}}
{{- with index $.Values.images.runtime $variant -}}
{{- $_ := set $images $variant . -}}
{{- end -}}
{{- end -}}
{{- $secrets := list -}}
{{- range .Values.imagePullSecrets -}}
{{- $secrets = append $secrets .name -}}
{{- end -}}
{{- $store := dict "claim" .Values.store.claim "size" (toString .Values.store.size) "accessMode" .Values.store.accessMode -}}
{{- with .Values.store.storageClass -}}
{{- $_ := set $store "storageClass" . -}}
{{- end -}}
{{- dict
  "images" $images
  "imagePullPolicy" .Values.imagePullPolicy
  "imagePullSecrets" $secrets
  "store" $store
  "jobs" .Values.jobs
  "openshift" .Values.openshift
  "proposeClasses" .Values.accelerators.propose
  "logLevel" .Values.logLevel
| toJson -}}
{{- end -}}
