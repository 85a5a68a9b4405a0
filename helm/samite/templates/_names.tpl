{{/* Name of the release's objects: `samite`, or the release's own name if it holds that word. */}}
{{- define "samite.name" -}}
{{- if contains "samite" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-samite" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Prefix of cluster-wide objects: two releases of one cluster must not share them. */}}
{{- define "samite.clusterName" -}}samite:{{ .Release.Namespace }}:{{ .Release.Name }}{{- end -}}

{{- define "samite.operator" -}}{{ include "samite.name" . }}-operator{{- end -}}

{{/* ClusterRole that is bound in each namespace that is served. */}}
{{- define "samite.namespaceRole" -}}{{ include "samite.clusterName" . }}:operator-in-namespaces{{- end -}}

{{- define "samite.agent" -}}{{ include "samite.name" . }}-agent{{- end -}}

{{- define "samite.labels" -}}
app.kubernetes.io/name: samite
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: samite
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels that select the operator's pods; they never change. */}}
{{- define "samite.operatorSelector" -}}
app.kubernetes.io/name: samite
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Namespaces that are served, as a JSON list; empty in cluster mode. */}}
{{- define "samite.namespaces" -}}
{{- if eq .Values.scope.mode "cluster" -}}[]
{{- else if .Values.scope.namespaces -}}{{ .Values.scope.namespaces | uniq | toJson }}
{{- else -}}{{ list .Release.Namespace | toJson }}
{{- end -}}
{{- end -}}

{{/* Fails where another release serves a namespace of this one. Sees nothing where the chart is rendered without a cluster. */}}
{{- define "samite.alone" -}}
{{- if .Values.scope.exclusive }}
{{- $mine := include "samite.namespaces" . | fromJsonArray }}
{{- $name := printf "%s:operator" (include "samite.clusterName" .) }}
{{- range $other := (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- $serves := dig "annotations" "samite.dev/serves" "" $other.metadata }}
{{- if and $serves (ne $other.metadata.name $name) }}
{{- $theirs := fromJsonArray $serves }}
{{- $both := list }}
{{- range $theirs }}{{ if or (not $mine) (has . $mine) }}{{ $both = append $both . }}{{ end }}{{ end }}
{{- if not $theirs }}{{ $both = $mine | default (list "every namespace") }}{{ end }}
{{- if $both }}
{{- $words := splitList ":" $other.metadata.name }}
{{- fail (printf "release %s of namespace %s serves %s already, and two operators must not look after the same runs: choose other scope.namespaces, or remove that release" (index $words 2) (index $words 1) (join ", " $both)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Image reference of .image: a digest wins over a tag, a tag over the chart's version. */}}
{{- define "samite.image" -}}
{{- $image := .image -}}
{{- if $image.digest -}}{{ $image.repository }}@{{ $image.digest }}
{{- else -}}{{ $image.repository }}:{{ $image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "samite.operatorImage" -}}{{ include "samite.image" (dict "image" .Values.operator.image "chart" .Chart) }}{{- end -}}
{{- define "samite.workerImage" -}}{{ include "samite.image" (dict "image" .Values.worker.image "chart" .Chart) }}{{- end -}}

{{- define "samite.tokenKeySecret" -}}{{ .Values.operator.tokenKeySecret | default (printf "%s-token-key" (include "samite.name" .)) }}{{- end -}}
