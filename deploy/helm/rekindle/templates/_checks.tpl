{{- /* Problems of the values, one a line: what the schema cannot say, or not in words. */ -}}

{{- define "rekindle.problems" -}}
{{- include "rekindle.unknown" . }}
{{ include "rekindle.problems.texts" . }}
{{ include "rekindle.problems.temporal" . }}
{{ include "rekindle.problems.together" . }}
{{ include "rekindle.problems.processes" . }}
{{ include "rekindle.problems.others" . }}
{{ include "rekindle.problems.shared" . }}
{{- end -}}

{{- /* Texts that do not have their form. */ -}}
{{- define "rekindle.problems.texts" -}}
{{- range $name, $form := (.Files.Get "files/known.json" | fromJson).texts -}}
{{- $value := $.Values -}}
{{- range $part := splitList "." $name }}{{ $value = index $value $part }}{{ end -}}
{{- range $text := ternary $value (list $value) (kindIs "slice" $value) -}}
{{- if and (ne (toString $text) "") (not (regexMatch $form.pattern (toString $text))) -}}
{{- printf "values.%s: %s is not accepted, use %s\n" $name (toString $text | quote) $form.accepted -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rekindle.problems.temporal" -}}
{{- with .Values.temporal -}}
{{- if and .trial.enabled .address -}}
{{- print "values.temporal.address: not accepted beside temporal.trial.enabled=true, use one of them\n" -}}
{{- else if not (or .trial.enabled .address) -}}
{{- print "values.temporal.address: missing, use HOST:PORT of your Temporal service, or temporal.trial.enabled=true for a trial\n" -}}
{{- end -}}
{{- if and .trial.enabled (not .trial.image) -}}
{{- print "values.temporal.trial.image: missing, use an image whose command `temporal` is Temporal's CLI\n" -}}
{{- end -}}
{{- if and .trial.enabled (or .tls.secretName .apiKey.secretName .serverName) -}}
{{- print "values.temporal: tls, apiKey and serverName are not accepted beside temporal.trial.enabled=true, which has no TLS\n" -}}
{{- end -}}
{{- if and .trial.enabled (ne .namespace "default") -}}
{{- print "values.temporal.namespace: not accepted beside temporal.trial.enabled=true, which has the namespace default\n" -}}
{{- end -}}
{{- if and .tls.secretName .apiKey.secretName -}}
{{- print "values.temporal.apiKey.secretName: not accepted beside temporal.tls.secretName, use one of them\n" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Values that contradict each other. */ -}}
{{- define "rekindle.problems.together" -}}
{{- with .Values -}}
{{- if and (eq .rules.set "own") (not .rules.own) -}}
{{- print "values.rules.own: missing, use --set-file rules.own=rules.yaml, or another rules.set: plain, nvidia, ascend\n" -}}
{{- end -}}
{{- if and (ne .rules.set "own") .rules.own -}}
{{- printf "values.rules.own: not read with rules.set=%s, use rules.set=own\n" .rules.set -}}
{{- end -}}
{{- if and (ne .rules.set "own") .rules.reads -}}
{{- printf "values.rules.reads: not read with rules.set=%s, which has its rights; use rules.set=own\n" .rules.set -}}
{{- end -}}
{{- if and .takeOver .observe -}}
{{- print "values.takeOver: not accepted beside observe=true, which orders nothing; use one of them\n" -}}
{{- end -}}
{{- if and .takeOver (eq .service.name "clusterd-grpc-svc") (eq $.Release.Namespace "mindx-dl") -}}
{{- print "values.service.name: clusterd-grpc-svc is not accepted with takeOver=true, since ClusterD keeps it; use another name\n" -}}
{{- end -}}
{{- if and (eq .rbac.scope "namespaces") (not .namespaces) -}}
{{- print "values.namespaces: missing with rbac.scope=namespaces, use the namespaces whose jobs are served\n" -}}
{{- end -}}
{{- if ne (len .namespaces) (len (uniq .namespaces)) -}}
{{- print "values.namespaces: a namespace is there twice, use each once\n" -}}
{{- end -}}
{{- if and .control.autoscaling.enabled (gt (int .control.autoscaling.minReplicas) (int .control.autoscaling.maxReplicas)) -}}
{{- $most := .control.autoscaling.maxReplicas -}}
{{- $least := .control.autoscaling.minReplicas -}}
{{- printf "values.control.autoscaling.maxReplicas: %v is not accepted, use at least minReplicas, which is %v\n" $most $least -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rekindle.problems.processes" -}}
{{- $settings := merge (include "rekindle.settings" . | fromYaml) (include "rekindle.temporal" . | fromYaml) -}}
{{- range $process := append (include "rekindle.processes" $ | fromJsonArray) "webhook" -}}
{{- range $variable := (index $.Values $process).env -}}
{{- if hasKey $settings $variable.name -}}
{{- printf "values.%s.env: %s is not accepted, since the chart sets it; use the value of that name\n" $process $variable.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Other installations of the cluster. Empty where there is no cluster, as in `helm template`. */ -}}
{{- define "rekindle.problems.others" -}}
{{- $own := .Release.Namespace -}}
{{- $same := lookup "apps/v1" "Deployment" $own "rekindle-control" -}}
{{- $release := dig "metadata" "annotations" "meta.helm.sh/release-name" "" (default dict $same) -}}
{{- if and $release (ne $release .Release.Name) -}}
{{- printf "namespace %s: the release %s is installed here, use `helm upgrade %s`, or another namespace\n" $own $release $release -}}
{{- end -}}
{{- $why := "Two must not serve the same jobs" -}}
{{- $both := "or set besideOthers=true, by which each job has one that recovers it" -}}
{{- $ways := printf "%s: uninstall it, or let it serve some (`namespaces`, rbac.scope=namespaces), %s" $why $both -}}
{{- if not .Values.besideOthers -}}
{{- range $subject := (default dict (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "rekindle-control")).subjects -}}
{{- if ne (get $subject "namespace") $own -}}
{{- printf "namespace %s: an installation that serves all namespaces is there. %s\n" (get $subject "namespace") $ways -}}
{{- end -}}
{{- end -}}
{{- range $served := ternary (list "") .Values.namespaces (eq .Values.rbac.scope "cluster") -}}
{{- range $binding := (default dict (lookup "rbac.authorization.k8s.io/v1" "RoleBinding" $served "")).items -}}
{{- range $subject := $binding.subjects -}}
{{- $there := get $subject "namespace" -}}
{{- if and (ne $there $own) (eq $binding.metadata.name (printf "rekindle-%s-control" $there)) -}}
{{- $served := $binding.metadata.namespace -}}
{{- printf "namespace %s: the installation in %s serves it. %s: leave it out of `namespaces`, %s\n" $served $there $why $both -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Objects that a cluster has once, and that another release has already. */ -}}
{{- define "rekindle.problems.shared" -}}
{{- $priority := list "scheduling.k8s.io/v1" "PriorityClass" -}}
{{- $admission := "admissionregistration.k8s.io/v1" -}}
{{- $objects := list
  (list "shared.priorityClasses" .Values.shared.priorityClasses $priority "rekindle")
  (list "shared.standbyPriorityClass" .Values.shared.standbyPriorityClass $priority "rekindle-standby")
  (list "shared.marks" .Values.shared.marks (list $admission "ValidatingAdmissionPolicy") "rekindle-marks")
  (list
    "shared.trainingJobRoles"
    .Values.shared.trainingJobRoles
    (list "rbac.authorization.k8s.io/v1" "ClusterRole")
    "rekindle-trainingjobs-view")
  (list "webhook.enabled" .Values.webhook.enabled (list $admission "MutatingWebhookConfiguration") "rekindle-webhook")
-}}
{{- range $object := $objects -}}
{{- if index $object 1 -}}
{{- $kind := index $object 2 -}}
{{- $name := index $object 3 -}}
{{- $there := default dict (lookup (index $kind 0) (index $kind 1) "" $name) -}}
{{- $namespace := dig "metadata" "annotations" "meta.helm.sh/release-namespace" "" $there -}}
{{- if and $namespace (ne $namespace $.Release.Namespace) -}}
{{- $where := printf "of a release in namespace %s" $namespace -}}
{{- printf "values.%s: %s %s is there already, %s; use false\n" (index $object 0) (index $kind 1) $name $where -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
