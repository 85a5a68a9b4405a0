{{/* Every pod of this chart meets the restricted pod security standard; so does this, word for word. */}}
{{- define "samite.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "samite.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Spec of a pod that runs one check of samite_operators.install to its end. Arguments: root, args, volumes, mounts. */}}
{{- define "samite.jobPod" -}}
{{- $root := .root -}}
serviceAccountName: {{ .account | default (include "samite.operator" $root) }}
restartPolicy: Never
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.operator.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.operator.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ include "samite.podSecurity" $root | nindent 2 }}
containers:
  - name: install
    image: {{ include "samite.operatorImage" $root }}
    imagePullPolicy: {{ $root.Values.operator.image.pullPolicy }}
    command: [python, -m, samite_operators.install]
    args: {{ .args | toJson }}
    resources:
      requests: {cpu: 50m, memory: 128Mi}
      limits: {cpu: "1", memory: 512Mi}
    securityContext: {{ include "samite.containerSecurity" $root | nindent 6 }}
    volumeMounts:
      - {name: documents, mountPath: /etc/samite/documents, readOnly: true}
volumes:
  - name: documents
    configMap: {name: {{ .documents }}}
{{- end -}}
