{{- /* Problems of the values, one a line: what the schema cannot say, or not in words. */ -}}

{{- define "rekindle.problems" -}}
{{- include "rekindle.unknown" . }}
{{ include "rekindle.problems.texts" . }}
{{ include "rekindle.problems.temporal" . }}
{{ include "rekindle.problems.trial" . }}
{{ include "rekindle.problems.together" . }}
{{ include "rekindle.problems.limits" . }}
{{ include "rekindle.problems.platforms" . }}
{{ include "rekindle.problems.unread" . }}
{{ include "rekindle.problems.processes" . }}
{{ include "rekindle.problems.pods" . }}
{{ include "rekindle.problems.resources" . }}
{{ include "rekindle.problems.places" . }}
{{ include "rekindle.problems.others" . }}
{{ include "rekindle.problems.shared" . }}
{{- end -}}

{{- /* Texts that do not have their form. */ -}}
{{- define "rekindle.problems.texts" -}}
{{- range $name, $form := (.Files.Get "files/known.json" | fromJson).texts -}}
{{- $value := $.Values -}}
{{- range $part := splitList "." $name }}{{ $value = index $value $part }}{{ end -}}
{{- $alone := not (or (kindIs "slice" $value) (kindIs "map" $value)) -}}
{{- range $text := ternary (list $value) $value $alone -}}
{{- $text = include "rekindle.text" $text -}}
{{- if and (or $text $form.needed (not $alone)) (not (regexMatch $form.pattern $text)) -}}
{{- printf "values.%s: %s is not accepted, use %s\n" $name (quote $text) $form.accepted -}}
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
{{- if and .trial.enabled $.Values.control.autoscaling.enabled -}}
{{- print "values.control.autoscaling.enabled: not accepted beside temporal.trial.enabled=true, which KEDA cannot call\n" -}}
{{- end -}}
{{- if and .tls.secretName .apiKey.secretName -}}
{{- print "values.temporal.apiKey.secretName: not accepted beside temporal.tls.secretName, use one of them\n" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* A volume that is there already: the upgrade would fail half-way, and with the StatefulSet its data goes. */ -}}
{{- define "rekindle.problems.trial" -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace "rekindle-temporal" -}}
{{- if and $there .Values.temporal.trial.enabled -}}
{{- $claim := (first $there.spec.volumeClaimTemplates).spec -}}
{{- $size := $claim.resources.requests.storage -}}
{{- $wanted := .Values.temporal.trial.storage -}}
{{- if ne (include "rekindle.quantity" $size) (include "rekindle.quantity" $wanted.size) -}}
{{- printf "values.temporal.trial.storage.size: cannot be changed, use %s as before\n" $size -}}
{{- end -}}
{{- $class := get $claim "storageClassName" -}}
{{- if ne $class $wanted.className -}}
{{- printf "values.temporal.trial.storage.className: cannot be changed, use %s as before\n" (quote $class) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Values that contradict each other. */ -}}
{{- define "rekindle.problems.together" -}}
{{- with .Values -}}
{{- if and (eq .rules.set "own") (not .rules.own) -}}
{{- print "values.rules.own: missing, use --set-file rules.own=rules.yaml, or another rules.set: plain, nvidia, ascend\n" -}}
{{- end -}}
{{- if and (eq .rules.set "own") .rules.own (ne (toString (get (fromYaml .rules.own) "kind")) "Rules") -}}
{{- print "values.rules.own: no file of rules, use one with kind: Rules that `rekindle check rules.yaml` accepts\n" -}}
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
{{- if has .service.name (list "rekindle-temporal" "rekindle-webhook") -}}
{{- printf "values.service.name: %s is not accepted, since another Service of the chart has it; use another name\n" .service.name -}}
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

{{- /* Limits that no process accepts: by themselves, and together. Texts in a wrong form have a problem of their own. */ -}}
{{- define "rekindle.problems.limits" -}}
{{- $known := .Files.Get "files/known.json" | fromJson -}}
{{- $seconds := dict -}}
{{- range $name, $bounds := $known.limits -}}
{{- $text := include "rekindle.text" (get $.Values.limits $name) -}}
{{- $is_read := regexMatch (get $known.texts (printf "limits.%s" $name)).pattern $text -}}
{{- $said := ternary (include "rekindle.seconds" $text | float64) $bounds.default $is_read -}}
{{- $_ := set $seconds $name $said -}}
{{- include "rekindle.problems.duration" (dict "name" (printf "limits.%s" $name) "text" $text "seconds" $said "least" $bounds.least) -}}
{{- end -}}
{{- $held := include "rekindle.text" .Values.drainHeld -}}
{{- if and $held (regexMatch $known.texts.drainHeld.pattern $held) -}}
{{- $said := include "rekindle.seconds" $held | float64 -}}
{{- include "rekindle.problems.duration" (dict "name" "drainHeld" "text" $held "seconds" $said "least" 1e-6) -}}
{{- end -}}
{{- if ge $seconds.oldPodDeleted $seconds.migrationDelivered -}}
{{- print "values.limits.oldPodDeleted: must be shorter than limits.migrationDelivered, which waits for it\n" -}}
{{- end -}}
{{- if ge (addf $seconds.settle $seconds.release $seconds.look) $seconds.nextOrder -}}
{{- print "values.limits.nextOrder: must be longer than limits.settle, release and look together\n" -}}
{{- end -}}
{{- end -}}

{{- define "rekindle.problems.duration" -}}
{{- if lt .seconds .least -}}
{{- printf "values.%s: %s is not accepted, use %s\n" .name (quote .text) (ternary "1 s or more" "more than 0 s" (ge .least 1.0)) -}}
{{- else if gt .seconds 315360000.0 -}}
{{- printf "values.%s: %s is not accepted, use at most 315360000 s, ten years\n" .name (quote .text) -}}
{{- end -}}
{{- end -}}

{{- /* Networks with an address that is not their first one. */ -}}
{{- define "rekindle.problems.platforms" -}}
{{- range $network := .Values.platforms -}}
{{- if regexMatch "^[0-9.]+/[0-9]+$" $network -}}
{{- $parts := splitList "/" $network -}}
{{- $address := 0 -}}
{{- range $part := splitList "." (first $parts) }}{{ $address = add (mul $address 256) (int64 $part) }}{{ end -}}
{{- $size := 1 -}}
{{- range until (int (sub 32 (int (last $parts)))) }}{{ $size = mul $size 2 }}{{ end -}}
{{- if mod $address $size }}{{ include "rekindle.problems.firstAddress" $network }}{{ end -}}
{{- else if regexMatch "^[0-9a-fA-F:]+/[0-9]{1,3}$" $network -}}
{{- $parts := splitList "/" $network -}}
{{- $halves := splitList "::" (first $parts) -}}
{{- $before := include "rekindle.hexDigits" (first $halves) -}}
{{- $after := include "rekindle.hexDigits" (rest $halves | join "") -}}
{{- $digits := printf "%s%s%s" $before (repeat (int (max 0 (sub 32 (add (len $before) (len $after))))) "0") $after -}}
{{- $bits := int (last $parts) -}}
{{- $ofHost := index (list "^0*$" "^[08]0*$" "^[048c]0*$" "^[02468ace]0*$") (mod $bits 4) -}}
{{- if and (le $bits 128) (eq (len $digits) 32) (not (regexMatch $ofHost (substr (int (div $bits 4)) (len $digits) $digits))) -}}
{{- include "rekindle.problems.firstAddress" $network -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rekindle.problems.firstAddress" -}}
{{- printf "values.platforms: %s is not accepted, use the first address of the network, or one address without /\n" (quote .) -}}
{{- end -}}

{{- /* The groups of an address of IPv6, such as fd00:1, with all four digits of each. */ -}}
{{- define "rekindle.hexDigits" -}}
{{- range $group := splitList ":" (lower .) }}{{ with $group }}{{ repeat (int (max 0 (sub 4 (len .)))) "0" }}{{ . }}{{ end }}{{ end -}}
{{- end -}}

{{- /* Values that mean nothing without another one, although they would change what is protected. */ -}}
{{- define "rekindle.problems.unread" -}}
{{- with .Values.webhook -}}
{{- if and .failClosed (not .enabled) -}}
{{- print "values.webhook.failClosed: not read without webhook.enabled=true\n" -}}
{{- end -}}
{{- if and .certManager.enabled (not .enabled) -}}
{{- print "values.webhook.certManager.enabled: not read without webhook.enabled=true\n" -}}
{{- end -}}
{{- if and .failClosed .enabled $.Values.observe -}}
{{- print "values.webhook.failClosed: not accepted beside observe=true, which refuses no job; use one of them\n" -}}
{{- end -}}
{{- $judged := without $.Values.namespaces "kube-system" $.Release.Namespace -}}
{{- if and .enabled $.Values.namespaces (not $judged) -}}
{{- $why := printf "no job of %s is judged" (join " and " $.Values.namespaces) -}}
{{- printf "values.webhook.enabled: not accepted with these namespaces, since %s; use false, or serve others\n" $why -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Variables that the chart sets, or that are there twice: the API server takes no list with a name twice. */ -}}
{{- define "rekindle.problems.processes" -}}
{{- $settings := merge (include "rekindle.settings" . | fromYaml) (include "rekindle.temporal" . | fromYaml) -}}
{{- $ours := list "POD_IP" "REKINDLE_GATEWAYS" "REKINDLE_GATEWAY_INSTANCE" "REKINDLE_POD_TEMPLATE_HASH" "REKINDLE_WEBHOOK_CERTIFICATES" "REKINDLE_GATEWAY_PORT" "REKINDLE_WEBHOOK_PORT" -}}
{{- $ours = concat $ours (keys $settings) -}}
{{- range $process := append (include "rekindle.processes" $ | fromJsonArray) "webhook" -}}
{{- range $variable := include "rekindle.secrets" (dict "root" $ "component" $process) | fromYamlArray -}}
{{- $ours = append $ours $variable.name -}}
{{- end -}}
{{- $seen := list -}}
{{- range $variable := (index $.Values $process).env -}}
{{- if has $variable.name $ours -}}
{{- printf "values.%s.env: %s is not accepted, since the chart sets it; use the value of that name\n" $process $variable.name -}}
{{- else if has $variable.name $seen -}}
{{- printf "values.%s.env: %s is there twice, use each name once\n" $process $variable.name -}}
{{- end -}}
{{- $seen = append $seen $variable.name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Parts of pods that the API server refuses, with places that are those of the pod and not of the values. */ -}}
{{- define "rekindle.problems.pods" -}}
{{- range $process := append (include "rekindle.processes" $ | fromJsonArray) "webhook" -}}
{{- range $number, $one := (index $.Values $process).tolerations -}}
{{- $at := printf "values.%s.tolerations[%d]" $process $number -}}
{{- $exists := eq (get $one "operator") "Exists" -}}
{{- if not (or (get $one "key") $exists) -}}
{{- printf "%s.key: missing, use one, or operator: Exists for all taints\n" $at -}}
{{- else if and $exists (get $one "value") -}}
{{- printf "%s.value: not accepted with operator: Exists, use Equal\n" $at -}}
{{- else if and (hasKey $one "tolerationSeconds") (ne (get $one "effect") "NoExecute") -}}
{{- printf "%s.tolerationSeconds: not accepted without effect: NoExecute\n" $at -}}
{{- end -}}
{{- end -}}
{{- range $variable := (index $.Values $process).env -}}
{{- if and (get $variable "value") (hasKey $variable "valueFrom") -}}
{{- printf "values.%s.env: %s has value and valueFrom, use one of them\n" $process $variable.name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Requests above a limit, which is often the default one: the API server takes no such pod. */ -}}
{{- define "rekindle.problems.resources" -}}
{{- range $process := append (include "rekindle.processes" $ | fromJsonArray) "webhook" -}}
{{- $resources := (index $.Values $process).resources -}}
{{- range $name, $limit := $resources.limits -}}
{{- $request := get $resources.requests $name | default 0 -}}
{{- if gt (include "rekindle.quantity" $request | float64) (include "rekindle.quantity" $limit | float64) -}}
{{- $at := printf "values.%s.resources.requests.%s" $process $name -}}
{{- printf "%s: %v is not accepted, use at most the limit, which is %v, or raise it too\n" $at $request $limit -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rekindle.quantity" -}}
{{- $text := include "rekindle.text" . -}}
{{- $decimal := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 -}}
{{- $binary := dict "Ki" 0x1p10 "Mi" 0x1p20 "Gi" 0x1p30 "Ti" 0x1p40 "Pi" 0x1p50 -}}
{{- mulf (regexFind "^[0-9.]+" $text) (get (merge $decimal $binary) (regexFind "[A-Za-z]*$" $text)) -}}
{{- end -}}

{{- /* Namespaces that have to be there, as far as the cluster can be seen. That of the release is made by Helm. */ -}}
{{- define "rekindle.problems.places" -}}
{{- if not (kindIs "string" (printf "name: %s" .Release.Namespace | fromYaml).name) -}}
{{- printf "namespace %s: YAML does not read this name as a text, use another namespace\n" .Release.Namespace -}}
{{- end -}}
{{- $places := dict -}}
{{- if eq .Values.rbac.scope "namespaces" }}{{ $_ := set $places "namespaces" .Values.namespaces }}{{ end -}}
{{- if .Values.contractWords }}{{ $_ := set $places "contractWords" (list "cluster-system") }}{{ end -}}
{{- if has "ascend" (include "rekindle.reads" . | fromJsonArray) -}}
{{- $_ := set $places "rules" (list "mindx-dl" "cluster-system") -}}
{{- end -}}
{{- if lookup "v1" "Namespace" "" "default" -}}
{{- range $value, $names := $places -}}
{{- range $name := $names -}}
{{- if not (or (eq $name $.Release.Namespace) (lookup "v1" "Namespace" "" $name)) -}}
{{- printf "values.%s: there is no namespace %s in this cluster, and rights are granted in it; create it first\n" $value $name -}}
{{- end -}}
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
{{- $service := default dict (lookup "v1" "Service" $own .Values.service.name) -}}
{{- $is_ours := eq (dig "metadata" "labels" "app.kubernetes.io/part-of" "" $service) "rekindle" -}}
{{- if and $service (not (or $is_ours .Values.observe .Values.service.keep)) -}}
{{- printf "values.service.keep: the Service %s of others is there, and would go with this release; use true\n" .Values.service.name -}}
{{- end -}}
{{- if not .Values.besideOthers }}{{ include "rekindle.problems.rivals" . }}{{ end -}}
{{- end -}}

{{- /* Installations that serve the same jobs. Each has a ClusterRoleBinding, which no tenant can make, and its settings. Those of
kustomize have a digest in their name and are not found: such an installation counts as one that serves all. */ -}}
{{- define "rekindle.problems.rivals" -}}
{{- $why := "Two must not serve the same jobs" -}}
{{- $both := "or set besideOthers=true, by which each job has one that recovers it" -}}
{{- range $binding := (default dict (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "")).items -}}
{{- range $subject := $binding.subjects -}}
{{- $there := get $subject "namespace" -}}
{{- $names := list "rekindle-control" (printf "rekindle-%s-control" $there) -}}
{{- if and $there (ne $there $.Release.Namespace) (has $binding.metadata.name $names) -}}
{{- $settings := default dict (lookup "v1" "ConfigMap" $there "rekindle-settings") -}}
{{- $theirs := dig "data" "REKINDLE_NAMESPACES" "[]" $settings | fromJsonArray -}}
{{- range $served := $theirs -}}
{{- if or (not $.Values.namespaces) (has $served $.Values.namespaces) -}}
{{- printf "namespace %s: the installation in %s serves it. %s: leave it out of `namespaces`, %s\n" $served $there $why $both -}}
{{- end -}}
{{- end -}}
{{- if not $theirs -}}
{{- $ways := printf "uninstall it, or let it serve some (`namespaces`, rbac.scope=namespaces), %s" $both -}}
{{- printf "namespace %s: an installation that serves all namespaces is there. %s: %s\n" $there $why $ways -}}
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
{{- $has_cluster := lookup "v1" "Namespace" "" "default" -}}
{{- $class := lookup "scheduling.k8s.io/v1" "PriorityClass" "" "rekindle" -}}
{{- if and $has_cluster (not (or .Values.shared.priorityClasses $class)) -}}
{{- print "values.shared.priorityClasses: there is no PriorityClass rekindle, without which no pod starts; use true\n" -}}
{{- end -}}
{{- end -}}
