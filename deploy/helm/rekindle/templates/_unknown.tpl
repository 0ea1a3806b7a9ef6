{{- /* Refuses names that the chart does not have, with the nearest one that it has. A schema cannot say that. */ -}}

{{- /* Unknown names, one a line, without those that Helm gives to charts below others. A name with a dot would look like a known one,
and is quoted. Arguments: `values`, `at`, which is what stands before their names, and `known`. */ -}}
{{- define "rekindle.unknown.names" -}}
{{- range $key, $value := .values -}}
{{- $path := printf "%s%s" $.at $key -}}
{{- if contains "." $key -}}
{{- printf "%s%s\n" $.at (quote $key) -}}
{{- else if or (has (printf "%s.*" $path) $.known) (has $path (list "global" "temporal.global")) -}}
{{- else if and (kindIs "map" $value) (or $value (has $path $.known)) -}}
{{- include "rekindle.unknown.names" (dict "values" $value "at" (printf "%s." $path) "known" $.known) -}}
{{- else if not (has $path $.known) -}}
{{- printf "%s\n" $path -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The known name that has the most pairs of neighbouring letters in common with `name`; empty: none is near. */ -}}
{{- define "rekindle.unknown.nearest" -}}
{{- $wanted := include "rekindle.unknown.pairs" .name | splitList "\n" -}}
{{- $best := "" -}}
{{- $most := 50 -}}
{{- range $candidate := .known -}}
{{- $candidate = trimSuffix ".*" $candidate -}}
{{- $pairs := include "rekindle.unknown.pairs" $candidate | splitList "\n" -}}
{{- $common := 0 -}}
{{- range $pair := $wanted }}{{ if has $pair $pairs }}{{ $common = add1 $common }}{{ end }}{{ end -}}
{{- $score := div (mul 200 $common) (add (len $wanted) (len $pairs)) -}}
{{- if gt $score $most }}{{ $best = $candidate }}{{ $most = $score }}{{ end -}}
{{- end -}}
{{- $best -}}
{{- end -}}

{{- define "rekindle.unknown.pairs" -}}
{{- $text := printf "^%s$" (lower .) -}}
{{- $pairs := list -}}
{{- range $at := until (sub (len $text) 1 | int) }}{{ $pairs = append $pairs (substr $at (add $at 2 | int) $text) }}{{ end -}}
{{- join "\n" $pairs -}}
{{- end -}}

{{- define "rekindle.unknown" -}}
{{- $known := (.Files.Get "files/known.json" | fromJson).names -}}
{{- $single := dict "watcher.replicas" "watcher" "operator.replicas" "operator" -}}
{{- range $name := include "rekindle.unknown.names" (dict "values" .Values "at" "" "known" $known) | trim | splitList "\n" -}}
{{- if hasKey $single $name -}}
{{- printf "values.%s: not accepted, since there is one %s\n" $name (get $single $name) -}}
{{- else if hasSuffix "\"" $name -}}
{{- printf "values.%s: a name with a dot is not accepted, use a level for each part, as in values.yaml\n" $name -}}
{{- else if $name -}}
{{- $nearest := include "rekindle.unknown.nearest" (dict "name" $name "known" $known) -}}
{{- if $nearest -}}
{{- printf "values.%s: unknown (did you mean %s?)\n" $name $nearest -}}
{{- else -}}
{{- printf "values.%s: unknown, and no known name is near: values.yaml of the chart has all\n" $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
