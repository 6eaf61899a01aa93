{{- define "stablernn.selector" -}}
app.kubernetes.io/name: stablernn
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stablernn.labels" -}}
{{ include "stablernn.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
