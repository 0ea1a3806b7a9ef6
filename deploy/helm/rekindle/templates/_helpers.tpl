{{- /* What every object of ours carries: by this label it is found, and told from others in the namespace. */ -}}
{{- define "rekindle.labels" -}}
{app.kubernetes.io/part-of: rekindle}
{{- end -}}

{{- /* Names of objects that no namespace holds. Releases that serve namespaces stand side by side, and one that serves all is alone. */ -}}
{{- define "rekindle.clusterName" -}}
{{- if eq .Values.rbac.scope "namespaces" }}rekindle-{{ .Release.Namespace }}{{ else }}rekindle{{ end -}}
{{- end -}}

{{- /* Processes of an installation, each with an account and a component of its name. */ -}}
{{- define "rekindle.processes" -}}
{{- toJson (list "control" "gateway" "watcher" "operator") -}}
{{- end -}}

{{- define "rekindle.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if or .tag (not .digest) }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "rekindle.temporalAddress" -}}
{{- if .Values.temporal.trial.enabled }}rekindle-temporal.{{ .Release.Namespace }}.svc:7233{{ else }}{{ .Values.temporal.address }}{{ end -}}
{{- end -}}

{{- /* Sets of rules whose reports are read. */ -}}
{{- define "rekindle.reads" -}}
{{- $sets := ternary .Values.rules.reads (list .Values.rules.set) (eq .Values.rules.set "own") -}}
{{- toJson $sets -}}
{{- end -}}

{{- define "rekindle.settings" -}}
{{- $values := .Values -}}
{{- $settings := dict
  "REKINDLE_CLUSTER" "kubernetes"
  "REKINDLE_NAMESPACES" (toJson $values.namespaces)
  "REKINDLE_OBSERVE" (toString $values.observe)
  "REKINDLE_TAKE_OVER" (toString $values.takeOver)
  "REKINDLE_NAMESPACE" .Release.Namespace
  "REKINDLE_HEALTH_PORT" "8080"
  "REKINDLE_LOG_JSON" (toString $values.log.json)
  "REKINDLE_LOG_LEVEL" $values.log.level
-}}
{{- if eq $values.rules.set "own" -}}
{{- $_ := set $settings "REKINDLE_RULES" "/etc/rekindle/rules/rules.yaml" -}}
{{- else if ne $values.rules.set "plain" -}}
{{- $_ := set $settings "REKINDLE_RULES" $values.rules.set -}}
{{- end -}}
{{- if ne $values.service.name "clusterd-grpc-svc" -}}
{{- $_ := set $settings "REKINDLE_GATEWAY_ADDRESS" (printf "%s.%s.svc:8899" $values.service.name .Release.Namespace) -}}
{{- end -}}
{{- range $name, $value := dict
  "RANK_KEYS" $values.rankKeys
  "JOB_KEYS" $values.jobKeys
  "ACCELERATORS" $values.accelerators
  "PLATFORMS" $values.platforms
-}}
{{- if $value }}{{ $_ := set $settings (printf "REKINDLE_%s" $name) (toJson $value) }}{{ end -}}
{{- end -}}
{{- with $values.drainHeld }}{{ $_ := set $settings "REKINDLE_DRAIN_HELD" (include "rekindle.duration" .) }}{{ end -}}
{{- with $values.temporal.ui }}{{ $_ := set $settings "REKINDLE_TEMPORAL_UI" . }}{{ end -}}
{{- if ne $values.senders "token" }}{{ $_ := set $settings "REKINDLE_SENDERS" $values.senders }}{{ end -}}
{{- if ne $values.mindioSenders "address" }}{{ $_ := set $settings "REKINDLE_MINDIO_SENDERS" $values.mindioSenders }}{{ end -}}
{{- if ne (toString $values.storm.nodes) "20" }}{{ $_ := set $settings "REKINDLE_STORM_NODES" (toString $values.storm.nodes) }}{{ end -}}
{{- if ne (toString $values.storm.recoveries) "50" -}}
{{- $_ := set $settings "REKINDLE_STORM_RECOVERIES" (toString $values.storm.recoveries) -}}
{{- end -}}
{{- range $name, $value := $values.limits -}}
{{- if ne (toString $value) "" -}}
{{- $_ := set $settings (printf "REKINDLE_LIMITS__%s" ($name | snakecase | upper)) (include "rekindle.duration" $value) -}}
{{- end -}}
{{- end -}}
{{- with $values.tracing.endpoint }}{{ $_ := set $settings "OTEL_EXPORTER_OTLP_ENDPOINT" . }}{{ end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "rekindle.temporal" -}}
{{- $temporal := dict "TEMPORAL_ADDRESS" (include "rekindle.temporalAddress" .) "TEMPORAL_NAMESPACE" .Values.temporal.namespace -}}
{{- with .Values.temporal.serverName }}{{ $_ := set $temporal "TEMPORAL_TLS_SERVER_NAME" . }}{{ end -}}
{{- toYaml $temporal -}}
{{- end -}}

{{- /* A text or a number as a text. Go writes large numbers as 1e+06. */ -}}
{{- define "rekindle.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- /* Seconds of a number or of an ISO 8601 duration, in the form that the values have. */ -}}
{{- define "rekindle.seconds" -}}
{{- $units := dict "D" 86400 "H" 3600 "M" 60 "S" 1 -}}
{{- $sum := 0.0 -}}
{{- range $part := regexFindAll "[0-9.]+[DHMS]" (include "rekindle.duration" .) -1 -}}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" $part | float64) (get $units (regexFind "[DHMS]$" $part))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* A number of seconds as an ISO 8601 duration, which is what settings are read as. */ -}}
{{- define "rekindle.duration" -}}
{{- $text := include "rekindle.text" . -}}
{{- if regexMatch "^[0-9.]+$" $text }}{{ printf "PT%sS" $text }}{{ else }}{{ $text }}{{ end -}}
{{- end -}}
