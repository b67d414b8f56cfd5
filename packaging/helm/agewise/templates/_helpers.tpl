{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "agewise.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "agewise.selector" -}}
app.kubernetes.io/name: agewise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agewise.labels" -}}
{{ include "agewise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "agewise.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* What looking at the memory of other programs takes, in place of privileged. */}}
{{- define "agewise.security" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
# The profile of container run times hides what has another one, or none.
appArmorProfile:
  type: Unconfined
capabilities:
  drop: [ALL]
  add: [BPF, PERFMON, SYS_ADMIN, SYS_PTRACE, SYS_NICE, DAC_OVERRIDE]
seccompProfile:
  type: RuntimeDefault
{{- end -}}
