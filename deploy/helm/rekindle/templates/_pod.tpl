{{- /* What every pod of Rekindle has. Arguments: `root`, and `component`, by which its values are named. */ -}}

{{- define "rekindle.selector" -}}
app.kubernetes.io/part-of: rekindle
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* A changed setting replaces the pods. */ -}}
{{- define "rekindle.podMetadata" -}}
{{- $settings := printf "%s\n%s\n%s" (include "rekindle.settings" .root) (include "rekindle.temporal" .root) .root.Values.rules.own -}}
labels:
  app.kubernetes.io/part-of: rekindle
  app.kubernetes.io/component: {{ .component }}
annotations: {rekindle.io/settings: {{ $settings | sha256sum | trunc 16 | quote }}}
{{- end -}}

{{- define "rekindle.identity" -}}
{{- $values := index .root.Values .component -}}
serviceAccountName: rekindle-{{ .component }}
priorityClassName: rekindle
enableServiceLinks: false # Services named rekindle-* or temporal-* would look like settings in the environment
# By default it takes 5 minutes until the pods of a lost node are replaced: too long for who brings back the others.
tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 10}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 10}
  {{- range $values.tolerations }}
  - {{ toJson . }}
  {{- end }}
{{- with include "rekindle.placement" . | trim }}
{{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "rekindle.podSpec" -}}
{{ include "rekindle.identity" . }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
  {{- with .root.Values.temporal.tls.secretName }}
  - name: temporal-tls
    secret:
      secretName: {{ quote . }}
      defaultMode: 288 # 0440
  {{- end }}
  {{- if eq .root.Values.rules.set "own" }}
  - name: rules
    configMap:
      name: rekindle-rules
  {{- end }}
{{- end -}}

{{- /* Where a pod may run, and with which Secrets its image is pulled. */ -}}
{{- define "rekindle.placement" -}}
{{- $values := index .root.Values .component -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ quote . }}}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end -}}

{{- define "rekindle.spread" -}}
topologySpreadConstraints:
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/part-of: rekindle
        app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "rekindle.process" -}}
{{- $values := index .root.Values .component -}}
image: {{ include "rekindle.image" .root | quote }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
command: [python, -P, -m, workers.{{ .component }}]
terminationMessagePolicy: FallbackToLogsOnError # kubectl describe shows why a process has ended
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 1
  failureThreshold: 120
# A minute: a busy process is no better when it is started again.
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
# No limit of CPU: a throttled process loses seconds while training is paused.
resources: {{ toJson $values.resources }}
{{- end -}}

{{- define "rekindle.container" -}}
{{ include "rekindle.process" . }}
envFrom:
  - configMapRef:
      name: rekindle-settings
  - configMapRef:
      name: rekindle-temporal
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- if .root.Values.temporal.tls.secretName }}
  - {name: temporal-tls, mountPath: /etc/rekindle/temporal, readOnly: true}
  {{- end }}
  {{- if eq .root.Values.rules.set "own" }}
  - {name: rules, mountPath: /etc/rekindle/rules, readOnly: true}
  {{- end }}
{{- end -}}

{{- /* Variables besides the settings: credentials of Temporal, which are read when a process starts, and those of the user. */ -}}
{{- define "rekindle.env" -}}
{{- include "rekindle.secrets" . }}
{{- range (index .root.Values .component).env }}
- {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* One key of the Secret, and not all: whoever may write it must not set our settings. A key that is missing is an error. */ -}}
{{- define "rekindle.secrets" -}}
{{- with .root.Values.temporal.apiKey.secretName }}
- name: TEMPORAL_API_KEY
  valueFrom: {secretKeyRef: {name: {{ quote . }}, key: TEMPORAL_API_KEY}}
{{- end }}
{{- if .root.Values.temporal.tls.secretName }}
- {name: TEMPORAL_TLS_CLIENT_CERT_PATH, value: /etc/rekindle/temporal/tls.crt}
- {name: TEMPORAL_TLS_CLIENT_KEY_PATH, value: /etc/rekindle/temporal/tls.key}
- {name: TEMPORAL_TLS_SERVER_CA_CERT_PATH, value: /etc/rekindle/temporal/ca.crt}
{{- end }}
{{- end -}}

{{- define "rekindle.ready" -}}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- define "rekindle.healthPort" -}}
- name: health
  containerPort: 8080
{{- end -}}
