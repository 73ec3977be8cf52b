#!/usr/bin/env bash
# Prints the README's recorded session: each command, then what the running server answered.
# usage: docs/session.sh [BASE_URL], with `make serve` running
base=${1:-http://localhost:8080}
show() { printf '$ %s\n' "${1//$base/localhost:8080}"; bash -c "$1"; echo; }
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0}' | jq -c .choices"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0, \"chat_template_kwargs\": {\"enable_thinking\": true}}' | jq -c .choices[0].message"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the weather in Paris?\"}], \"temperature\": 0, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Get the weather in a city\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}]}' | jq -c .choices"
show "curl -s $base/v1/completions -d '{\"prompt\": \"<|fim_prefix|>def add(a, b):\\n    return <|fim_suffix|>\\n<|fim_middle|>\", \"temperature\": 0}' | jq -c '.choices[0].text, .usage'"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox.\"}], \"temperature\": 0, \"max_tokens\": 80}' | jq -r .choices[0].message.content"
show "curl -sN $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"temperature\": 0, \"max_tokens\": 3, \"stream\": true}'"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"temperature\": \"hot\"}'"
