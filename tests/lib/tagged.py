"""A chat template that shows the tags around calls of tools, as those of Hermes and Qwen do."""
TAGGED = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for t in m.tool_calls or [] %}<tool_call>
{"name": "{{ t.function.name }}", "arguments": {{ t.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
