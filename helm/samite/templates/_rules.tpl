{{/*
What the operator may do, least first. Written once: the roles hold it, `helm test` asks the API server for each line, golden files show it.
Rights in a namespace that it serves. It makes a Role over the Lease of a run for that run's workers, so it must hold those verbs itself:
the API server lets nobody grant what they lack.
*/}}
{{- define "samite.namespaceRules" -}}
- {apiGroups: [samite.dev], resources: [trainingruns], verbs: [delete, get, list, patch, watch]}
- {apiGroups: [samite.dev], resources: [trainingruns/status], verbs: [patch]}
- {apiGroups: [samite.dev], resources: [trainingruns/finalizers], verbs: [update]}
- {apiGroups: [samite.dev], resources: [trainingruntimes], verbs: [get, list]}
- {apiGroups: [ray.io], resources: [rayclusters], verbs: [create, delete, get, list, patch, watch]}
- {apiGroups: [""], resources: [pods], verbs: [delete, get, list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, list]}
- {apiGroups: [""], resources: [secrets], verbs: [create]}
{{- with .Values.storage.secretNames }}
- {apiGroups: [""], resources: [secrets], resourceNames: {{ . | toJson }}, verbs: [get]}
{{- end }}
- {apiGroups: [""], resources: [serviceaccounts], verbs: [create, delete, list, patch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings, roles], verbs: [create, delete, list, patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, delete, get, list, patch, watch]}
{{- end -}}

{{/* Rights over what has no namespace: nodes and definitions are only read. */}}
{{- define "samite.clusterRules" -}}
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get], resourceNames: [clustertrainingruntimes.samite.dev, nodeblames.samite.dev, rayclusters.ray.io, trainingruns.samite.dev, trainingruntimes.samite.dev]}
- {apiGroups: [samite.dev], resources: [clustertrainingruntimes], verbs: [get, list]}
- {apiGroups: [samite.dev], resources: [nodeblames], verbs: [create, delete, get, list]}
- {apiGroups: [samite.dev], resources: [nodeblames/status], verbs: [patch]}
{{- end -}}

{{/* Rights in the release's own namespace: the Lease that keeps a second operator out. */}}
{{- define "samite.homeRules" -}}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [{{ include "samite.operator" . }}], verbs: [get, patch]}
{{- end -}}
