{{- define "bayplan.fullname" -}}
{{- if contains "bayplan" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-bayplan" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "bayplan.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "bayplan.fullname" .) -}}
{{- end -}}

{{- define "bayplan.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "bayplan.selectorLabels" -}}
app.kubernetes.io/name: bayplan
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "bayplan.labels" -}}
{{ include "bayplan.selectorLabels" . }}
app.kubernetes.io/part-of: bayplan
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* One port answers /healthz, /readyz and /metrics. */ -}}
{{- define "bayplan.port" -}}
{{- dig "listen" "port" 8080 .Values.configuration -}}
{{- end -}}

{{- define "bayplan.gatewaySelectorLabels" -}}
app.kubernetes.io/name: bayplan
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "bayplan.gatewayLabels" -}}
{{ include "bayplan.gatewaySelectorLabels" . }}
app.kubernetes.io/part-of: bayplan
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "bayplan.gatewayPort" -}}
{{- dig "gateway" "listen" "port" 8000 .Values.configuration -}}
{{- end -}}

{{- define "bayplan.gatewayAdminPort" -}}
{{- dig "gateway" "listen" "adminPort" 8080 .Values.configuration -}}
{{- end -}}

{{- define "bayplan.gatewayDrainSeconds" -}}
{{- dig "gateway" "times" "drainSeconds" 300 .Values.configuration -}}
{{- end -}}
