"""The types of GGUF metadata keys, by the part after the architecture's name."""
U32 = """context_length embedding_length block_count feed_forward_length vocab_size attention.head_count
attention.head_count_kv attention.key_length attention.value_length attention.sliding_window rope.dimension_count
rope.scaling.original_context_length expert_count expert_used_count expert_feed_forward_length
expert_shared_feed_forward_length expert_shared_count expert_gating_func expert_group_count expert_group_used_count
leading_dense_block_count attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla
attention.value_length_mla ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank
ssm.group_count""".split()
F32 = """attention.layer_norm_rms_epsilon attention.layer_norm_epsilon rope.freq_base rope.freq_base_swa
rope.scaling.factor rope.scaling.attn_factor rope.scaling.yarn_log_multiplier rope.scaling.yarn_beta_fast
rope.scaling.yarn_beta_slow attn_logit_softcapping final_logit_softcapping attention.scale logit_scale
residual_scale embedding_scale expert_weights_scale""".split()
BOOL = ["attention.causal", "use_parallel_residual", "expert_weights_norm", "ssm.dt_b_c_rms"]
STRING = ["rope.scaling.type", "tensor_data_layout"]
TYPES = {key: kind for kind, keys in [("u32", U32), ("f32", F32), ("bool", BOOL), ("string", STRING)] for key in keys}


def typed(architecture, metadata):
    """The metadata of a file: each value with its type, under its whole key."""
    out = {"general.architecture": {"string": architecture}}
    for key, value in metadata.items():
        kind = TYPES[key]
        out[f"{architecture}.{key}"] = {f"{kind}[]" if isinstance(value, list) else kind: value}
    return out
