package vocab

// templates are the chat formats that a recipe may ask for by name, as Jinja templates.
var templates = map[string]string{
	"chatml": `{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`,

	"llama3": `{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>

{{ message['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}`,

	"mistral": `{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}{% if message['role'] == 'system' %}{% set ns.system = message['content'] + '

' %}{% elif message['role'] == 'user' %} [INST] {{ ns.system }}{% set ns.system = '' %}{{ message['content'] }} [/INST]{% elif message['role'] == 'assistant' %} {{ message['content'] }}{{ eos_token }}{% else %}{{ raise_exception('only system, user and assistant messages are known') }}{% endif %}{% endfor %}`,

	"alpaca": `{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}

{% elif message['role'] == 'user' %}### Instruction:
{{ message['content'] }}

{% elif message['role'] == 'assistant' %}### Response:
{{ message['content'] }}{{ eos_token }}

{% endif %}{% endfor %}{% if add_generation_prompt %}### Response:
{% endif %}`,

	"exaone": `{% for message in messages %}{% if loop.first and message['role'] != 'system' %}[|system|][|endofturn|]
{% endif %}[|{{ message['role'] }}|]{{ message['content'] }}{% if message['role'] == 'user' %}
{% else %}[|endofturn|]
{% endif %}{% endfor %}{% if add_generation_prompt %}[|assistant|]{% endif %}`,
}
