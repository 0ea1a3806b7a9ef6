{{- /* What each account may do; rbac.yaml binds it. Generated from the table of rights: `make rights`. */ -}}

{{- define "rekindle.rights.control.inNamespaces" }}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [events], verbs: [list, create]}
- {apiGroups: [rekindle.io], resources: [trainingjobs], verbs: [get, list, patch]}
- {apiGroups: [mindxdl.gitee.com], resources: [ascendjobs], verbs: [get, list, patch]}
- {apiGroups: [scheduling.volcano.sh], resources: [podgroups], verbs: [get, patch]}
- {apiGroups: [batch], resources: [jobs], verbs: [get, list, patch]}
- {apiGroups: [batch], resources: [jobs/status], verbs: [patch]}
- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get, list, patch]}
- {apiGroups: [kubeflow.org], resources: [pytorchjobs], verbs: [get, list, patch]}
- {apiGroups: [trainer.kubeflow.org], resources: [trainjobs], verbs: [get, list, patch]}
- {apiGroups: [""], resources: [podtemplates], verbs: [list, create, delete]}
{{- end }}

{{- define "rekindle.rights.control.ofCluster" }}
- {apiGroups: [""], resources: [nodes], verbs: [get, list, patch]}
- {apiGroups: [rekindle.io], resources: [marks], verbs: [set]}
- {apiGroups: [rekindle.io], resources: [priority], verbs: [use]}
{{- end }}

{{- define "rekindle.rights.control.atHome" }}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, patch]}
- {apiGroups: [apps], resources: [deployments], resourceNames: [rekindle-control], verbs: [get]}
- {apiGroups: [apps], resources: [replicasets], verbs: [get]}
- {apiGroups: [apps], resources: [deployments/status], resourceNames: [rekindle-control], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}

{{- define "rekindle.rights.gateway.inNamespaces" }}
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [""], resources: [events], verbs: [create]}
- {apiGroups: [rekindle.io], resources: [trainingjobs], verbs: [get, list]}
- {apiGroups: [mindxdl.gitee.com], resources: [ascendjobs], verbs: [get, list]}
- {apiGroups: [batch], resources: [jobs], verbs: [get, list]}
- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get, list]}
- {apiGroups: [kubeflow.org], resources: [pytorchjobs], verbs: [get, list]}
- {apiGroups: [trainer.kubeflow.org], resources: [trainjobs], verbs: [get, list]}
- {apiGroups: [""], resources: [podtemplates], verbs: [list]}
{{- end }}

{{- define "rekindle.rights.gateway.ofCluster" }}
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [rekindle.io], resources: [priority], verbs: [use]}
{{- end }}

{{- define "rekindle.rights.gateway.atHome" }}
- {apiGroups: [apps], resources: [statefulsets/status], resourceNames: [rekindle-gateway], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}

{{- define "rekindle.rights.watcher.inNamespaces" }}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [get, list, create, delete]}
- {apiGroups: [""], resources: [events], verbs: [create]}
- {apiGroups: [rekindle.io], resources: [trainingjobs], verbs: [get, list, watch, patch]}
- {apiGroups: [mindxdl.gitee.com], resources: [ascendjobs], verbs: [get, list, watch, patch]}
- {apiGroups: [batch], resources: [jobs], verbs: [get, list, watch, patch]}
- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get, list, watch, patch]}
- {apiGroups: [kubeflow.org], resources: [pytorchjobs], verbs: [get, list, watch, patch]}
- {apiGroups: [trainer.kubeflow.org], resources: [trainjobs], verbs: [get, list, watch, patch]}
- {apiGroups: [""], resources: [podtemplates], verbs: [list]}
{{- end }}

{{- define "rekindle.rights.watcher.ofCluster" }}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
- {apiGroups: [""], resources: [namespaces], verbs: [list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}
- {apiGroups: [rekindle.io], resources: [priority], verbs: [use]}
{{- end }}

{{- define "rekindle.rights.watcher.atHome" }}
- {apiGroups: [apps], resources: [deployments/status], resourceNames: [rekindle-watcher], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}

{{- define "rekindle.rights.operator.inNamespaces" }}
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, delete]}
- {apiGroups: [""], resources: [services], verbs: [get, create]}
- {apiGroups: [rekindle.io], resources: [trainingjobs], verbs: [get, list, watch]}
- {apiGroups: [rekindle.io], resources: [trainingjobs/status], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}

{{- define "rekindle.rights.operator.ofCluster" }}
- {apiGroups: [rekindle.io], resources: [marks], verbs: [set]}
- {apiGroups: [rekindle.io], resources: [priority], verbs: [use]}
{{- end }}

{{- define "rekindle.rights.operator.atHome" }}
- {apiGroups: [apps], resources: [deployments/status], resourceNames: [rekindle-operator], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end }}
