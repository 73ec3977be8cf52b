#!/usr/bin/env bash
# Prints the README's recorded session: each command, then what the running server answered.
# usage: docs/session.sh [BASE_URL], with `make serve` running
base=${1:-http://localhost:8080}
show() { printf '$ %s\n' "${1//$base/localhost:8080}"; bash -c "$1"; echo; }
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0}' | jq -c .choices"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}], \"temperature\": 0, \"chat_template_kwargs\": {\"enable_thinking\": true}}' | jq -c .choices[0].message"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the weather in Paris?\"}], \"temperature\": 0, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Get the weather in a city\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}]}' | jq -c .choices"
show "curl -s $base/infill -d '{\"input_prefix\": \"def add(a, b):\\n    return \", \"input_suffix\": \"\\n\", \"temperature\": 0, \"n_predict\": 16}' | jq -c '.content, .tokens_evaluated, .tokens_predicted'"
show "curl -s $base/v1/embeddings -d '{\"model\": \"demo-embed\", \"input\": [\"What is the capital of France?\", \"Name the capital of France.\", \"How many legs does a spider have?\"]}' | jq -c '[.data[].embedding] as \$e | {dimensions: (\$e[0] | length), paraphrase: ([\$e[0], \$e[1]] | transpose | map(.[0] * .[1]) | add), other: ([\$e[0], \$e[2]] | transpose | map(.[0] * .[1]) | add)}, .usage'"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox.\"}], \"temperature\": 0, \"max_tokens\": 80}' | jq -r .choices[0].message.content"
show "curl -sN $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"temperature\": 0, \"max_tokens\": 3, \"stream\": true}'"
show "curl -s $base/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"temperature\": \"hot\"}'"
