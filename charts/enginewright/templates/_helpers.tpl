{{- /* Name of all objects of the release, which distinguishes cluster-scoped objects of several releases. */ -}}
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
{{ include "enginewright.commonLabels" . }}
{{- end -}}

{{- define "enginewright.nodeCacheLabels" -}}
{{ include "enginewright.nodeCacheSelector" . }}
{{ include "enginewright.commonLabels" . }}
{{- end -}}

{{- define "enginewright.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Of the DaemonSet and its Service; not empty: the chart has them. */ -}}
{{- define "enginewright.hasNodeCache" -}}
{{- if and (.Values.store.bucket | default dict).uri (.Values.store.cache | default dict).enabled -}}true{{- end -}}
{{- end -}}

{{- define "enginewright.nodeCache" -}}
{{ include "enginewright.name" . }}-cache
{{- end -}}

{{- define "enginewright.nodeCacheSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node-cache
{{- end -}}

{{- define "enginewright.jobsPriorityClass" -}}
{{ include "enginewright.name" . }}-jobs
{{- end -}}

{{- /* Earlier releases had groups of namespaces that shared parts of a bucket. */ -}}
{{- define "enginewright.refuseShared" -}}
{{- if .shared -}}
{{- $uri := .uri | default "PATH" | trimSuffix "/" -}}
{{- fail (printf "store.bucket.shared is not supported any more: each namespace has a part of the bucket of its own. Copy the artefacts that a group's namespaces need from %s/_GROUP to %s/NAMESPACE with `enginewright store export` and `enginewright store import`, then remove store.bucket.shared; pods that run go on reading the shared part (docs/bucket.md)" $uri $uri) -}}
{{- end -}}
{{- end -}}

{{- /* The operator's settings, as one JSON document. */ -}}
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
{{- with .Values.store.bucket -}}
{{- include "enginewright.refuseShared" . -}}
{{- if .uri -}}
{{- $bucket := dict "uri" .uri "secretRef" (.secretRef | default nil) "serviceAccountName" (.serviceAccountName | default nil) -}}
{{- $_ := set $store "bucket" $bucket -}}
{{- else if or .secretRef .serviceAccountName -}}
{{- fail "store.bucket.secretRef and store.bucket.serviceAccountName apply only to a bucket: set store.bucket.uri" -}}
{{- end -}}
{{- end -}}
{{- if include "enginewright.hasNodeCache" . -}}
{{- $_ := set $store "nodeCache" (printf "%s.%s.svc:8080" (include "enginewright.nodeCache" .) .Release.Namespace) -}}
{{- end -}}
{{- with .Values.store.images -}}
{{- if .repository -}}
{{- if not (regexMatch `^([a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?|[a-z0-9-]+:[0-9]+|localhost)(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+$` .repository) -}}
{{- fail (printf "store.images.repository is %s: write HOST/PATH without scheme and tag, such as registry.example.com/team/artefacts" .repository) -}}
{{- end -}}
{{- $_ := set $store "images" (dict "repository" .repository "secretRef" (.secretRef | default nil)) -}}
{{- else if .secretRef -}}
{{- fail "store.images.secretRef applies only to a repository: set store.images.repository" -}}
{{- end -}}
{{- end -}}
{{- with .Values.store.gc -}}
{{- $_ := set $store "gc" (dict "enabled" .enabled "interval" (toString .interval) "unusedFor" (toString .unusedFor) "maxSize" (toString .maxSize) "dryRun" (ternary .dryRun nil (kindIs "bool" .dryRun))) -}}
{{- end -}}
{{- $jobs := .Values.jobs -}}
{{- if and .Values.jobsPriorityClass.create (not $jobs.priorityClassName) -}}
{{- $jobs = merge (dict "priorityClassName" (include "enginewright.jobsPriorityClass" .)) $jobs -}}
{{- end -}}
{{- dict
  "images" $images
  "imagePullPolicy" .Values.imagePullPolicy
  "imagePullSecrets" $secrets
  "store" $store
  "jobs" $jobs
  "refusedNetworks" ((.Values.sources | default dict).refusedNetworks | default list)
  "fleet" .Values.fleet
  "openshift" .Values.openshift
  "proposeClasses" .Values.accelerators.propose
  "productLabels" (.Values.accelerators.productLabels | default list)
  "deployment" (include "enginewright.name" .)
  "watchNamespaces" .Values.watchNamespaces
  "logLevel" .Values.logLevel
| toJson -}}
{{- end -}}

{{- /* Rules of the operator's Roles in each namespace that it watches. */ -}}
{{- define "enginewright.rules" -}}
- apiGroups: [enginewright.dev]
  resources: [inferencemodels]
  verbs: [get, list, watch]
- apiGroups: [enginewright.dev]
  resources: [inferenceengines] # deleted to rebuild an engine that the store has lost
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [enginewright.dev]
  resources: [inferencemodels/status, inferenceengines/status]
  verbs: [patch]
- apiGroups: [enginewright.dev]
  resources: [inferencemodels/finalizers, inferenceengines/finalizers] # required to set owner references where OwnerReferencesPermissionEnforcement is enabled, as on OpenShift
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes] # of models with spec.serving.route
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates] # of classes with spec.device
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods] # annotated: what permits one to become unready (docs/sidecar.md), and what others measured (docs/throughput.md)
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # only the store's; never deleted
  resourceNames: [{{ .Values.store.claim | quote }}]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [namespaces] # annotation enginewright.dev/store-max-size
  verbs: [get]
- apiGroups: [""]
  resources: [events] # listed for Jobs that have no pod
  verbs: [get, list, create, patch]
{{- end -}}
