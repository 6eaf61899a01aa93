#!/usr/bin/env bash
# The service by hand: classify, forecast, raw tensors, and a stream whose state the caller keeps.
set -euo pipefail

URL=${STABLERNN_URL:-http://127.0.0.1:8080}
HEADERS=(-H "Content-Type: application/json")
if [ -n "${STABLERNN_TOKEN:-}" ]; then
  HEADERS+=(-H "Authorization: Bearer $STABLERNN_TOKEN")
fi

# ask PATH [BODY]: the answer; an error of the server is printed and ends the script.
ask() {
  curl --silent --show-error --fail-with-body "${HEADERS[@]}" "$URL$1" ${2:+--data "$2"}
}

# text NAME: the text of that name in a JSON answer. Programs use a JSON parser instead.
text() {
  sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}

echo "Models:"
ask /v1/timeseries/models
echo

echo "Two series of different lengths, one with a missing value:"
ask /v1/timeseries/classify '{
  "model": "digits",
  "inputs": [{"name": "first", "series": [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15]},
             {"name": "second", "series": [0, null, 12, 13, 5, 0]}],
  "options": {"top_k": 2}
}'
echo

echo "Three weeks ahead, with the middle of the forecast and a band around it:"
ask /v1/timeseries/forecast '{
  "model": "co2",
  "inputs": [{"series": [369.1, null, 369.4, 369.6], "frequency": "W", "start_timestamp": "2024-01-06T00:00:00Z"}],
  "options": {"horizon": 3, "quantiles": [0.1, 0.9]}
}'
echo

echo "Tensors, by the Open Inference Protocol v2:"
ask /v2/models/digits/infer '{
  "inputs": [{"name": "x", "shape": [1, 6, 1], "datatype": "FP32", "data": [0, 0, 5, 13, 9, 1]}],
  "outputs": [{"name": "probabilities"}]
}'
echo

echo "A stream, with its state in a token that any server with the same key and model goes on from:"
# A model of patches has a label when one is full.
sample="[5]"
answer=$(ask /v1/step "{\"model\": \"digits\", \"values\": $sample, \"sequence\": 1}")
echo "step 1: $(text label <<< "$answer")"
for step in 2 3 4; do
  token=$(text state_token <<< "$answer")
  answer=$(ask /v1/step "{\"state_token\": \"$token\", \"values\": $sample, \"sequence\": $step}")
  echo "step $step: $(text label <<< "$answer")"
done
