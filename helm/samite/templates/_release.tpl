{{/* The release as the Jobs read it: samite_operators/install/release.py. */}}
{{- define "samite.release" -}}
{{- $namespaces := include "samite.namespaces" . | fromJsonArray -}}
{{- $roles := list
  (dict "namespace" "" "rules" (include "samite.clusterRules" . | fromYamlArray))
  (dict "namespace" .Release.Namespace "rules" (include "samite.homeRules" . | fromYamlArray)) -}}
{{- $rules := include "samite.namespaceRules" . | fromYamlArray -}}
{{- range $namespace := $namespaces -}}
{{- $roles = append $roles (dict "namespace" $namespace "rules" $rules) -}}
{{- else -}}
{{- $roles = append $roles (dict "namespace" "" "rules" $rules) -}}
{{- end -}}
{{- dict "namespaces" $namespaces "crdsInstall" .Values.crds.install "roles" $roles | toJson -}}
{{- end -}}
