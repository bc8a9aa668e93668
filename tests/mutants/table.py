"""The mutations of ``run.py``: by file, the original text (there exactly once), what takes its place, and the tests,
at least one of which must then fail. Those in ``EQUIVALENT`` change no result, and are there with the reason.
"""

ARTIFACTS = "tests/test_artifacts.py"
COMPARE = "tests/test_compare.py"
CONTROL = "tests/test_rl_control.py"
DECODER = "tests/test_model_decoder.py"
DECODING = "tests/test_decoding.py"
DEEPSPEED = "tests/test_deepspeed.py"
EVALUATION = "tests/test_evaluation.py"
FEEDBACK = "tests/test_model_feedback.py"
GENERATE = "tests/test_model_generate.py"
HALVES = "tests/test_rl_halves.py"
LENGTH = "tests/test_reward_length.py"
LOSS = "tests/test_rl_loss.py"
MATH = "tests/test_reward_math_answer.py"
OBJECTIVE = "tests/test_objective.py"
OPTIMIZER = "tests/test_optimizer.py"
OPTIONS = "tests/test_rl_options.py"
PARTS = "tests/test_rl_parts.py"
PIPELINE = "tests/test_pipeline.py"
POOL = "tests/test_reward_pool.py"
PRETRAIN = "tests/test_pretrain.py"
PROGRAMS = "tests/test_reward_code.py"
REASONING = "tests/test_reward_reasoning.py"
RETROFIT = "tests/test_retrofit.py"
REWARDS = "tests/test_rl_rewards.py"
ROWS = "tests/test_rows.py"
SANDBOX = "tests/test_sandbox.py"
SCHEDULE = "tests/test_schedule.py"
SCORING = "tests/test_scoring.py"
SFT = "tests/test_sft.py"
STATISTICS = "tests/test_statistics.py"
TRAINER = "tests/test_rl_trainer.py"

MUTANTS: dict[str, list[tuple[str, ...]]] = {
    # --- the model -----------------------------------------------------------------------------------
    "fbt_rl/model/feedback.py": [
        (
            "self.gate_proj(normed_embeds).sigmoid()",
            "self.gate_proj(embeds).sigmoid()",
            f"{FEEDBACK}::test_fusions_by_hand",
        ),
        (
            "self.gate_proj(normed_embeds).sigmoid()",
            "self.gate_proj(normed_embeds).tanh()",
            f"{FEEDBACK}::test_fusions_by_hand",
        ),
        (
            "torch.cat((latents, embeds), dim=-1)",
            "torch.cat((embeds, latents), dim=-1)",
            f"{FEEDBACK}::test_fusions_by_hand",
        ),
        (
            "return embeds + self.value_proj(latents)",
            "return normed_embeds + self.value_proj(latents)",
            f"{FEEDBACK}::test_fusions_by_hand",
        ),
        (
            "torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)",
            "states.roll(1, dims=1)",
            f"{FEEDBACK}::test_shift",
        ),
        ("torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)", "states", f"{FEEDBACK}::test_shift"),
        (
            "fuse = self.later\n",
            "fuse = torch.ones_like(self.later)\n",
            f"{FEEDBACK}::test_first_positions_are_never_fused",
        ),
        (
            "self.fused_mask[:, index] if",
            "self.fused_mask[:, index - 1] if",
            f"{FEEDBACK}::test_fused_mask_of_two_and_three_dimensions",
        ),
        (
            "fuse = fuse & (self.fused_mask",
            "fuse = (self.fused_mask",
            f"{FEEDBACK}::test_fused_mask_of_two_and_three_dimensions",
            f"{FEEDBACK}::test_first_positions_are_never_fused",
        ),
        (
            "uniform_(-self.jitter, self.jitter)",
            "uniform_(0.0, self.jitter)",
            f"{FEEDBACK}::test_jitter_only_where_asked",
        ),
        (
            "uniform_(-self.jitter, self.jitter)",
            "normal_(0.0, self.jitter)",
            f"{FEEDBACK}::test_jitter_only_where_asked",
        ),
        (
            "refresh[:, 0] = False",
            "refresh[:, 0] = True",
            f"{FEEDBACK}::test_a_row_that_starts_inside_a_document_has_no_earlier_state",
        ),
        (
            "return state, fuse & refresh\n",
            "return state, fuse\n",
            f"{FEEDBACK}::test_a_row_that_starts_inside_a_document_has_no_earlier_state",
            f"{FEEDBACK}::test_refresh_mask_keeps_latents_outside",
        ),
        (
            "self.carried + (state - state.detach())",
            "self.carried.clone()",
            f"{SCORING}::test_enough_refreshing_passes_give_the_gradient_through_time",
        ),
        (
            "self.carried + (state - state.detach())",
            "state",
            f"{SCORING}::test_stale_latents_are_seen_and_refreshing_repairs_them",
        ),
        (
            "torch.where(refresh[..., None], state, self.carried)",
            "torch.where(refresh[..., None], self.carried, state)",
            f"{FEEDBACK}::test_refresh_mask_keeps_latents_outside",
        ),
        (
            "fuse & (refresh | self.known)",
            "fuse & self.known",
            f"{FEEDBACK}::test_prefill_mask_is_a_plain_pass_over_the_prompt",
        ),
        ('fewest = 2 if mode == "fused" else 1', "fewest = 1", f"{FEEDBACK}::test_prefill_passes_of_each_mode"),
        ('or (mode == "standard" and passes > 1)', "", f"{FEEDBACK}::test_prefill_passes_of_each_mode"),
    ],
    "fbt_rl/model/backbone.py": [
        (
            "plain = self.input_norm(embeds) if self.config.plain_input_norm else embeds",
            "plain = embeds",
            f"{FEEDBACK}::test_second_pass_by_hand",
        ),
        (
            "plain = self.input_norm(embeds) if self.config.plain_input_norm else embeds",
            "plain = self.input_norm(embeds)",
            f"{FEEDBACK}::test_retrofit_inputs",
        ),
        ("later = position_ids != 0", "later = position_ids >= 0", f"{DECODER}::test_packed_equals_unpacked"),
        (
            "prefill_mask = prefill_mask & later",
            "prefill_mask = prefill_mask.clone()",
            f"{FEEDBACK}::test_prefill_of_ragged_rows",
            f"{FEEDBACK}::test_prefill_mask_is_a_plain_pass_over_the_prompt",
        ),
        ("refresh_mask & ~prefill_mask", "refresh_mask", f"{SCORING}::test_replay_equals_sequential"),
        (
            "torch.where(prefill_mask[..., None], prefilled, latents)",
            "prefilled",
            f"{SCORING}::test_replay_equals_sequential",
        ),
        (
            "for index in range(num_passes - 1):",
            "for index in range(num_passes):",
            f"{FEEDBACK}::test_second_pass_by_hand",
        ),
        (
            "torch.is_grad_enabled() and not detach_passes",
            "torch.is_grad_enabled()",
            f"{SCORING}::test_detached_jacobi_passes_come_to_reading_recorded_states",
        ),
        (
            "self._stack_input(plan, num_passes - 1, pass_states, embeds, plain)",
            "self._stack_input(plan, 0, pass_states, embeds, plain)",
            f"{FEEDBACK}::test_fused_mask_of_two_and_three_dimensions",
            f"{OBJECTIVE}::test_pass_losses_are_those_of_the_models_passes",
        ),
        (
            "pass_states[-1] if pass_states else None",
            "pass_states[0] if pass_states else None",
            f"{FEEDBACK}::test_k_passes_are_exact_on_the_first_k_states",
        ),
        (
            "fused = self.input_norm(self.feedback(state.to(embeds.dtype), embeds, normed))",
            "fused = self.feedback(state.to(embeds.dtype), embeds, normed)",
            f"{FEEDBACK}::test_second_pass_by_hand",
        ),
        ("fused = fused * self.config.fused_input_rms", "pass", f"{FEEDBACK}::test_retrofit_inputs"),
        (
            "return torch.where(fuse[..., None], fused.to(plain.dtype), plain)",
            "return fused.to(plain.dtype)",
            f"{FEEDBACK}::test_second_pass_by_hand",
            f"{FEEDBACK}::test_first_positions_are_never_fused",
        ),
        (
            "width = int(columns.max()) + 1 if len(columns) else 1",
            "width = int(columns.max()) if len(columns) else 1",
            f"{FEEDBACK}::test_prefill_mask_is_a_plain_pass_over_the_prompt",
        ),
        (
            "F.pad(shift_right(outputs.last_hidden_state)",
            "F.pad((outputs.last_hidden_state)",
            f"{FEEDBACK}::test_prefill_mask_is_a_plain_pass_over_the_prompt",
        ),
        (
            "(attention_mask.long().cumsum(-1) - 1).clamp(min=0)",
            "torch.arange(attention_mask.shape[1])[None].expand_as(attention_mask)",
            f"{DECODER}::test_left_padded_equals_unpadded",
        ),
        (
            "return (torch.arange(length, device=embeds.device) + start)[None]",
            "return torch.arange(length, device=embeds.device)[None]",
            f"{DECODER}::test_cached_equals_uncached",
            f"{FEEDBACK}::test_decoding_with_a_cache_and_carried_latents",
        ),
        (
            "with save_on_cpu(pin_memory=inputs.is_cuda):\n                return states(inputs)",
            "with save_on_cpu(pin_memory=inputs.is_cuda):\n                return states(inputs.detach())",
            f"{FEEDBACK}::test_activations_of_early_passes_change_no_gradient",
        ),
        (
            "return checkpoint(states, inputs, use_reentrant=False)",
            "return states(inputs)",
            f"{FEEDBACK}::test_recomputed_passes_hold_little_memory",
        ),
        (
            "latents is not None and latents.shape != embeds.shape",
            "False",
            f"{FEEDBACK}::test_arguments_that_do_not_fit_are_refused",
        ),
        (
            "if several and cache is not None and cache.get_seq_length() > 0:",
            "if False:",
            f"{FEEDBACK}::test_arguments_that_do_not_fit_are_refused",
        ),
    ],
    "fbt_rl/model/decoder.py": [
        (
            "torch.cat((-sin, sin), dim=-1)",
            "torch.cat((sin, -sin), dim=-1)",
            f"{DECODER}::test_rotation_is_the_textbook_one",
        ),
        ("dtype=wide) / head_dim", "dtype=wide) / (head_dim // 2)", f"{DECODER}::test_rotation_is_the_textbook_one"),
        (
            "self.scaling = config.head_dim**-0.5",
            "self.scaling = config.hidden_size**-0.5",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "rotate(self.k_norm(self.k_proj(hidden_states).view(heads_shape)), rotation)",
            "rotate(self.q_norm(self.k_proj(hidden_states).view(heads_shape)), rotation)",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "rotate(self.q_norm(self.q_proj(hidden_states).view(heads_shape)), rotation)",
            "self.q_norm(rotate(self.q_proj(hidden_states).view(heads_shape), rotation))",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "output = output * self.head_gate(hidden_states).sigmoid()[..., None]",
            "output = output * self.head_gate(hidden_states).softmax(-1)[..., None]",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "F.silu(self.gate_proj(hidden_states))",
            "F.gelu(self.gate_proj(hidden_states))",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "(2 * config.num_hidden_layers) ** -0.5 if config.depth_scaling else 1.0",
            "config.num_hidden_layers ** -0.5 if config.depth_scaling else 1.0",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "(2 * config.num_hidden_layers) ** -0.5 if config.depth_scaling else 1.0",
            "(2 * config.num_hidden_layers) ** -0.5",
            f"{DECODER}::test_the_ablation_switches_remove_their_part",
        ),
        (
            "self.post_attention_norm(branch), alpha=self.branch_scale",
            "branch, alpha=self.branch_scale",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "self.mlp(self.pre_mlp_norm(hidden_states))",
            "self.mlp(hidden_states)",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "self.config.rope_theta_full if layer_type",
            "self.config.rope_theta if layer_type",
            f"{DECODER}::test_raised_rope_base_takes_effect_at_once_and_only_in_full_layers",
        ),
        (
            "attention_mask=masks[layer_type],",
            'attention_mask=masks["full_attention"],',
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
        (
            "last_hidden_state=self.norm(hidden_states)",
            "last_hidden_state=hidden_states",
            f"{DECODER}::test_decoder_equals_one_written_by_hand",
        ),
    ],
    "fbt_rl/model/causal_lm.py": [
        ("            jitter=jitter,\n", "", f"{FEEDBACK}::test_jitter_reaches_the_second_pass_only"),
        (
            'inputs["num_passes"] = prefill_passes',
            'inputs["num_passes"] = 1',
            f"{GENERATE}::test_greedy_equals_the_reference_loop",
        ),
        ('inputs["latents"] = latents', "pass", f"{GENERATE}::test_greedy_equals_the_reference_loop"),
        (
            'model_kwargs["latents"] = outputs.last_hidden_state[:, -1:]',
            'model_kwargs["latents"] = outputs.last_hidden_state[:, :1]',
            f"{GENERATE}::test_greedy_equals_the_reference_loop",
        ),
    ],
    "fbt_rl/model/configuration.py": [
        (
            "(layer + 1) % self.full_attention_interval else",
            "layer % self.full_attention_interval else",
            f"{DECODER}::test_full_attention_in_every_nth_layer",
        ),
        (
            "rope_theta_full=model.rope_theta_full,",
            "rope_theta_full=model.rope_theta,",
            f"{DECODER}::test_preset_fields_reach_the_config",
        ),
        (
            "depth_scaling=model.depth_scaling,",
            "",
            f"{DECODER}::test_preset_fields_reach_the_config",
            f"{DECODER}::test_the_ablation_switches_remove_their_part",
        ),
        ("fusion=model.fusion,", "", f"{DECODER}::test_preset_fields_reach_the_config"),
    ],
    "fbt_rl/model/retrofit.py": [
        (
            "square().mean().sqrt().item()",
            "abs().mean().item()",
            f"{RETROFIT}::test_new_parts_are_initialised_and_the_rms_is_the_embeddings",
        ),
        ("plain_input_norm=False,", "plain_input_norm=True,", f"{RETROFIT}::test_standard_logits_are_the_sources"),
        (
            "tie_word_embeddings=head.weight is embedding",
            "tie_word_embeddings=True",
            f"{RETROFIT}::test_standard_logits_are_the_sources",
        ),
        (
            "if not torch.equal(before, after):",
            "if False:",
            f"{RETROFIT}::test_decoders_that_cannot_stay_exact_are_refused",
        ),
    ],
    # --- decoding ------------------------------------------------------------------------------------
    "fbt_rl/decoding.py": [
        (
            "key=lambda row: -len(prompts[row // params.num_samples])",
            "key=lambda row: -len(prompts[row % len(prompts)])",
            f"{DECODING}::test_nothing_is_computed_for_finished_rows_or_repeated_prompts",
        ),
        (
            "_uniforms(seed, [keys[row] for row in rows]",
            "_uniforms(seed, rows",
            f"{DECODING}::test_a_row_does_not_depend_on_its_batch",
        ),
        (
            "key=np.array([seed, key], np.uint64)",
            "key=np.array([key, key], np.uint64)",
            f"{DECODING}::test_a_row_does_not_depend_on_its_batch",
        ),
        (
            ">= longest - lengths[:, None]",
            "< lengths[:, None]",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "logits = logits / params.temperature",
            "logits = logits * params.temperature",
            f"{DECODING}::test_samples_follow_the_distribution",
        ),
        ("logits = logits / params.temperature", "pass", f"{DECODING}::test_samples_follow_the_distribution"),
        (
            "uniforms[:, None] * cdf[:, -1:], right=True",
            "uniforms[:, None] * 0.9 * cdf[:, -1:], right=True",
            f"{DECODING}::test_samples_follow_the_distribution",
        ),
        (
            "logprobs = warpers(uniforms, logits).log_softmax(-1)",
            "logprobs = logits.log_softmax(-1)",
            f"{DECODING}::test_top_k_and_top_p_restrict_and_renormalise",
        ),
        (
            "return tokens, logprobs.gather(",
            "return tokens, logits.log_softmax(-1).gather(",
            f"{DECODING}::test_top_k_and_top_p_restrict_and_renormalise",
        ),
        (
            "resolve_prefill_passes(params.mode, params.prefill_passes)} if is_fbt(model) else {}",
            "1} if is_fbt(model) else {}",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)",
            "positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "rows = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=model.device)\n",
            "rows = torch.arange(len(prompts), device=model.device) % len(distinct)\n",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "state = None if state is None else state[rows]",
            "state = None if state is None else state[rows].roll(1, 0)",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "finished = torch.isin(tokens, eos)",
            "finished = tokens == eos[:1].sum()",
            f"{DECODING}::test_eos_cuts_a_row_and_leaves_the_others_alone",
            f"{DECODING}::test_nothing_is_computed_for_finished_rows_or_repeated_prompts",
        ),
        (
            "written[rows, : step + 1].tolist()",
            "written[: len(rows), : step + 1].tolist()",
            f"{DECODING}::test_rows_end_where_enough_is_said",
        ),
        (
            "if stopped and (step + 1) % STOP_CHECK_EVERY == 0:",
            "if stopped and step % STOP_CHECK_EVERY == 0:",
            f"{DECODING}::test_rows_end_where_enough_is_said",
        ),
        (
            "finished |= torch.tensor(enough",
            "finished = torch.tensor(enough",
            f"{EVALUATION}::test_decoding_ends_soon_after_a_stop_text",
            f"{DECODING}::test_rows_end_where_enough_is_said",
        ),
        (
            'end(rows[finished], step + 1, "stop")',
            'end(rows[finished], step, "stop")',
            f"{DECODING}::test_eos_cuts_a_row_and_leaves_the_others_alone",
        ),
        (
            'end(rows[~finished], step + 1, "length")',
            'end(rows, step + 1, "length")',
            f"{DECODING}::test_an_eos_as_the_last_allowed_token_is_a_stop",
        ),
        (
            "cache.drop_rows(holes, movers, count)",
            "cache.drop_rows(holes, holes, count)",
            f"{DECODING}::test_eos_cuts_a_row_and_leaves_the_others_alone",
        ),
        (
            "state = None if state is None else state[order]",
            "state = None if state is None else state[:count]",
            f"{DECODING}::test_eos_cuts_a_row_and_leaves_the_others_alone",
        ),
        (
            "positions[order], mask[order]",
            "positions[:count], mask[order]",
            f"{DECODING}::test_eos_cuts_a_row_and_leaves_the_others_alone",
        ),
        (
            "positions[order], mask[order]",
            "positions[order], mask[:count]",
            f"{DECODING}::test_eos_cuts_a_row_and_leaves_the_others_alone",
        ),
        (
            'if params.mode != "standard" and state is not None else {}',
            'if params.mode == "fused" and state is not None else {}',
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "positions = positions + 1",
            "positions = positions + 2",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "order = rows.argsort(stable=True)",
            "order = torch.arange(len(rows))",
            f"{DECODING}::test_latents_fed_back_in_one_pass_reproduce_the_logprobs",
        ),
        (
            "taken.append((rows, logprobs) + ((state,) if",
            "taken.append((rows, logprobs) + ((state.roll(1, 0),) if",
            f"{DECODING}::test_latents_fed_back_in_one_pass_reproduce_the_logprobs",
        ),
        (
            "if not bool(columns[0].isfinite().all()):",
            "if False:",
            f"{DECODING}::test_weights_that_are_not_finite_are_reported",
        ),
        (
            "    model.eval()\n",
            "",
            f"{DECODING}::test_a_model_in_training_decodes_without_dropout_and_is_left_as_it_was",
        ),
    ],
    "fbt_rl/cache.py": [
        (
            "kept = self.window - 1\n",
            "kept = self.window - 2\n",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
            f"{DECODING}::test_preallocated_cache_equals_the_dynamic_one",
        ),
        (
            "max(0, self.filled - self.window)",
            "max(0, self.filled - self.window - 1)",
            f"{DECODING}::test_preallocated_cache_equals_the_dynamic_one",
        ),
        (
            "min(total, self.window - 1 + query_length)",
            "min(total, self.window + query_length)",
            f"{DECODING}::test_batched_and_cached_equals_one_by_one_and_uncached",
        ),
        (
            "return mask[:, : attention[0].seen + 1]",
            "return mask[:, : attention[0].seen]",
            f"{DECODING}::test_any_causal_language_model_decodes_in_standard_mode",
        ),
    ],
    # --- training ------------------------------------------------------------------------------------
    "fbt_rl/training/objective.py": [
        (
            "feedback_weight / (passes - 1) * losses[1:].sum()",
            "feedback_weight * losses[1:].sum()",
            f"{OBJECTIVE}::test_multi_pass_loss",
        ),
        (
            "feedback_weight / (passes - 1) * losses[1:].sum()",
            "feedback_weight * losses[-1]",
            f"{OBJECTIVE}::test_multi_pass_loss",
        ),
        (
            "losses = ntp + z_weight * z if z_weight else ntp",
            "losses = torch.cat((ntp[:1] + z_weight * z[:1], ntp[1:]))",
            f"{OBJECTIVE}::test_multi_pass_loss",
        ),
        (
            "return (log_partition - chosen).sum(), log_partition.square().sum()",
            "return (log_partition - chosen).sum(), log_partition.sum()",
            f"{OBJECTIVE}::test_token_loss_sums_by_hand",
        ),
        (
            "targets = labels[:, 1:]\n",
            "targets = labels[:, :-1]\n",
            f"{OBJECTIVE}::test_token_loss_sums_equal_cross_entropy",
        ),
        (
            "default_rng([seed, step, row])",
            "default_rng([seed, row])",
            f"{OBJECTIVE}::test_masks_depend_on_the_row_not_on_its_micro_batch",
        ),
        (
            "default_rng([seed, step, row])",
            "default_rng([seed, step])",
            f"{OBJECTIVE}::test_prefix_is_uniform_over_the_document_and_independent",
        ),
        (
            ".random((num_passes - 1, length)) for",
            ".random((1, length)).repeat(num_passes - 1, 0) for",
            f"{OBJECTIVE}::test_prefix_is_uniform_over_the_document_and_independent",
        ),
        (
            "document = starts.cumsum(1) - 1 ",
            "document = torch.zeros_like(position_ids)",
            f"{OBJECTIVE}::test_prefix_is_uniform_over_the_document_and_independent",
        ),
        (
            "(draw * lengths).long().clamp(max=lengths - 1) + 1",
            "(draw * lengths).long().clamp(max=lengths - 1)",
            f"{OBJECTIVE}::test_first_pass_first_positions_and_padding_stay_plain",
        ),
        (
            "fused = position_ids[:, None] >= plain_prefix",
            "fused = position_ids[:, None] > plain_prefix",
            f"{OBJECTIVE}::test_prefix_is_uniform_over_the_document_and_independent",
        ),
        (
            "draw < plain_prompt_probability",
            "draw > plain_prompt_probability",
            f"{OBJECTIVE}::test_prompts_are_plain_or_fused_as_a_whole",
        ),
        (
            "torch.zeros_like(starts)[:, None], fused",
            "torch.ones_like(starts)[:, None], fused",
            f"{OBJECTIVE}::test_first_pass_first_positions_and_padding_stay_plain",
        ),
        (
            "return 0.0 * body.input_norm(",
            "return 1.0 * body.input_norm(",
            f"{OBJECTIVE}::test_idle_feedback_takes_part_with_zero_gradient",
        ),
        (
            "losses = losses + idle_feedback(body, states[0])",
            "pass",
            f"{OBJECTIVE}::test_idle_feedback_takes_part_with_zero_gradient",
        ),
    ],
    "fbt_rl/training/objective_trainer.py": [
        (
            "feedback_weight=objective.feedback_weight, z_weight",
            "feedback_weight=1.0, z_weight",
            f"{PRETRAIN}::test_the_loss_is_weighted_as_configured",
        ),
        (
            "z_weight = objective.z_loss if cooling else 0.0",
            "z_weight = objective.z_loss",
            f"{PRETRAIN}::test_the_loss_is_weighted_as_configured",
        ),
        (
            "z_weight = objective.z_loss if cooling else 0.0",
            "z_weight = 0.0",
            f"{PRETRAIN}::test_the_loss_is_weighted_as_configured",
        ),
        ('{"jitter": objective.jitter, ', '{"jitter": 0.02, ', f"{PRETRAIN}::test_what_is_drawn_goes_by_the_settings"),
        ("if objective.prefix_mixing:", "if True:", f"{PRETRAIN}::test_what_is_drawn_goes_by_the_settings"),
        (
            "SeedSequence([self.args.seed, step, row_ids[0]])",
            "SeedSequence([step, row_ids[0]])",
            f"{PRETRAIN}::test_golden_losses",
        ),
        (
            "return draw_num_passes(self.stage.objective.passes, self.args.seed, step, self.stage.steps)",
            "return draw_num_passes(self.stage.objective.passes, self.args.seed, step, step + 1)",
            f"{PRETRAIN}::test_what_is_drawn_goes_by_the_settings",
        ),
        (
            'law["plain_prompt_probability"] = self.stage.plain_prompt_probability',
            "pass",
            f"{SFT}::test_prompts_follow_their_own_law",
        ),
        ('inputs["labels"] == IGNORED', 'inputs["labels"] != IGNORED', f"{SFT}::test_prompts_follow_their_own_law"),
        (
            'row: dict[str, float] = {"loss": loss / len(drawn)}',
            'row: dict[str, float] = {"loss": loss}',
            f"{PRETRAIN}::test_a_row_of_several_steps_is_their_mean",
        ),
        (
            'self._window_start = state["window_start"]',
            "self._window_start = self.state.global_step",
            f"{PRETRAIN}::test_resumed_inside_a_logging_interval",
        ),
        (
            "self.stage.steps * self.stage.batch_rows, self.args.seed)",
            "self.stage.steps * self.stage.batch_rows, 0)",
            f"{PRETRAIN}::test_golden_losses",
        ),
    ],
    "fbt_rl/training/schedule.py": [
        (
            "step >= math.ceil(phase.start_fraction * steps)][-1]",
            "step >= math.floor(phase.start_fraction * steps)][-1]",
            f"{SCHEDULE}::test_passes_start_with_their_phase",
        ),
        ("starts = [math.ceil(", "starts = [math.floor(", f"{SCHEDULE}::test_mean_passes"),
        ("(step + 1) / config.warmup_steps", "step / config.warmup_steps", f"{SCHEDULE}::test_wsd_at_the_corners"),
        ('math.sqrt(done) if config.decay == "sqrt" else done', "done", f"{SCHEDULE}::test_sqrt_decay"),
        (
            "return min(rising, falling)",
            "return rising * falling",
            f"{SCHEDULE}::test_overlapping_warmup_and_decay_take_the_smaller",
        ),
        (
            "return step >= decay_start(steps, decay_fraction)",
            "return step > decay_start(steps, decay_fraction)",
            f"{SCHEDULE}::test_cooldown_is_the_last_part",
        ),
        (
            "default_rng([seed, step, _PASS_STREAM])",
            "default_rng([step, _PASS_STREAM])",
            f"{SCHEDULE}::test_passes_are_a_pure_function_of_seed_and_step",
        ),
        ('draw, side="right")) + 1', 'draw, side="right"))', f"{SCHEDULE}::test_pass_frequencies"),
    ],
    "fbt_rl/training/normuon.py": [
        (
            "_NEWTON_SCHULZ_STEPS = 5",
            "_NEWTON_SCHULZ_STEPS = 3",
            f"{OPTIMIZER}::test_singular_values_go_five_times_through_the_polynomial",
        ),
        (
            "(3.4445, -4.7750, 2.0315)",
            "(3.4445, -4.7750, 2.0)",
            f"{OPTIMIZER}::test_singular_values_go_five_times_through_the_polynomial",
        ),
        (
            'momentum, beta2 = group["betas"]',
            'beta2, momentum = group["betas"]',
            f"{OPTIMIZER}::test_two_steps_by_hand_with_mu_and_beta2_apart",
        ),
        (
            "average.mul_(momentum).add_(gradient)",
            "average.mul_(momentum).add_(gradient, alpha=1 - momentum)",
            f"{OPTIMIZER}::test_two_steps_by_hand_with_mu_and_beta2_apart",
        ),
        (
            "(1 - beta2) * update.square().mean(-1)",
            "(1 - beta2) * update.square().sum(-1)",
            f"{OPTIMIZER}::test_rows_are_normalised_and_the_norm_is_kept",
        ),
        ("moment.sqrt() + _EPS", "moment + _EPS", f"{OPTIMIZER}::test_rows_are_normalised_and_the_norm_is_kept"),
        (
            "* (rows / columns) ** 0.5",
            "* max(1.0, rows / columns) ** 0.5",
            f"{OPTIMIZER}::test_rows_are_normalised_and_the_norm_is_kept",
        ),
        ("rate * rate / peak * group", "rate * group", f"{OPTIMIZER}::test_decay_falls_with_the_square_of_the_rate"),
        (
            "if moving[index] and piece.length:",
            "if piece.length:",
            f"{OPTIMIZER}::test_a_matrix_without_gradient_rests",
        ),
        (
            "matrix.split(self.blocks[index]), moments[index].split(self.blocks[index])",
            "(matrix,), (moments[index],)",
            f"{OPTIMIZER}::test_blocks_are_updated_like_matrices_of_their_own",
        ),
        (
            '"weight_decay": 0.0, "matrices": False',
            '"weight_decay": weight_decay, "matrices": False',
            f"{OPTIMIZER}::test_rates_of_the_two_kinds",
        ),
    ],
    "fbt_rl/training/optimizer.py": [
        (
            "id(parameter) not in apart and not name.endswith(_HEAD_GATE)",
            "id(parameter) not in apart",
            f"{OPTIMIZER}::test_every_parameter_is_in_exactly_one_group",
        ),
        (
            "[*tables, model.get_output_embeddings()]",
            "tables",
            f"{OPTIMIZER}::test_every_parameter_is_in_exactly_one_group",
        ),
        ("if parameter.requires_grad:", "if True:", f"{OPTIMIZER}::test_frozen_parameters_are_in_no_group"),
        (
            "(heads * width, key_heads * width, key_heads * width)",
            "(rows,)",
            f"{OPTIMIZER}::test_fused_projections_are_several_matrices",
        ),
        ("betas=config.normuon_betas,", "", f"{OPTIMIZER}::test_rates_of_the_two_kinds"),
        ("adam_betas=config.betas,", "", f"{OPTIMIZER}::test_rates_of_the_two_kinds"),
        (
            "lr=config.learning_rate, betas=config.betas)",
            "lr=config.learning_rate)",
            f"{OPTIMIZER}::test_rates_of_the_two_kinds",
        ),
        (
            '{"params": list(others.values()), "weight_decay": 0.0}',
            '{"params": list(others.values()), "weight_decay": config.weight_decay}',
            f"{OPTIMIZER}::test_rates_of_the_two_kinds",
        ),
    ],
    "fbt_rl/training/rows.py": [
        ("labels[position_ids == 0] = IGNORED", "labels[:, 0] = IGNORED", f"{ROWS}::test_collator"),
        ('row.get("labels", row["input_ids"])', 'row["input_ids"]', f"{ROWS}::test_collator_keeps_given_labels"),
        ('"bfd_split" if split else "bfd"', '"bfd"', f"{ROWS}::test_long_documents_go_on_in_further_rows"),
        (
            "default_rng([self.seed, epoch])",
            "default_rng([self.seed])",
            f"{ROWS}::test_order_is_epochs_of_permutations",
        ),
        ("np.arange(length) for length", "np.arange(1, length + 1) for length", f"{ROWS}::test_collator"),
    ],
    "fbt_rl/training/deepspeed.py": [
        ('"gradient_clipping": max_grad_norm,', "", f"{DEEPSPEED}::test_clipping_is_always_said"),
        (
            "split.ranks * split.micro_batch_rows * split.accumulation",
            "split.micro_batch_rows * split.accumulation",
            f"{DEEPSPEED}::test_settings_follow_the_run",
        ),
        (
            "return BatchSplit(ranks, micro, share // micro)",
            "return BatchSplit(ranks, micro, rows // micro)",
            f"{DEEPSPEED}::test_split_batch",
        ),
        ("elif key in settings and derived != value:", "elif False:", f"{DEEPSPEED}::test_contradictions_are_refused"),
    ],
    "fbt_rl/training/arguments.py": [
        ("key = context.name if own is None else own", "key = context.name", "tests/test_arms.py"),
        (
            "learning_rate=stage.optimizer.learning_rate,",
            "learning_rate=1e-3,",
            f"{PRETRAIN}::test_settings_reach_the_trainers_arguments",
        ),
        (
            "activation_checkpointing=stage.gradient_checkpointing,",
            "",
            f"{PRETRAIN}::test_settings_reach_the_trainers_arguments",
        ),
    ],
    "fbt_rl/training/trainer.py": [
        ("wsd_multiplier(step, num_training_steps, self.stage.optimizer)", "1.0", f"{PRETRAIN}::test_golden_losses"),
        (
            "folder.truncate_metrics(checkpoint_step(checkpoint) if checkpoint else 0)",
            "pass",
            f"{PRETRAIN}::test_killed_and_resumed_equals_uninterrupted",
        ),
        (
            "finite = value.detach().isfinite().all()",
            "finite = value.detach().isnan().logical_not().any()",
            f"{PRETRAIN}::test_the_pass_that_is_not_finite_is_named",
        ),
        ("        self._watched.clear()\n", "", f"{PRETRAIN}::test_a_loss_that_is_not_finite_stops_the_run"),
        (
            "written == layout or (same_stage",
            "True or (same_stage",
            f"{PRETRAIN}::test_another_zero_stage_than_the_checkpoints",
        ),
        (
            "            shutil.rmtree(temporary, ignore_errors=True)\n            raise save_error(final",
            "            raise save_error(final",
            f"{PRETRAIN}::test_a_failed_save_leaves_the_older_checkpoint",
        ),
    ],
    # --- RL ------------------------------------------------------------------------------------------
    "rl/scoring.py": [
        (
            "completion[:, columns:] = True",
            "completion[:, columns + 1 :] = True",
            f"{SCORING}::test_replay_equals_sequential",
        ),
        ('inputs["fused_mask"] = torch.ones_like(completion)', "pass", f"{SCORING}::test_replay_equals_sequential"),
        (
            '"num_passes": 1 + scorer.passes',
            '"num_passes": max(1, scorer.passes)',
            f"{SCORING}::test_enough_refreshing_passes_give_the_gradient_through_time",
        ),
        (
            "nn.functional.pad(latents, (0, 0, columns, 0))",
            "nn.functional.pad(latents, (0, 0, columns - 1, 1))",
            f"{SCORING}::test_replay_equals_sequential",
        ),
        (
            '"detach_passes": scorer.detach',
            '"detach_passes": True',
            f"{SCORING}::test_jacobi_and_sequential_give_the_gradient_through_time",
        ),
        (
            '"num_passes": max(count, longest, 2)',
            '"num_passes": max(count // 2, 2)',
            f"{SCORING}::test_the_sequential_scorer_is_exact",
        ),
        ("if recorded != policy_step:", "if False:", f"{SCORING}::test_a_scorer_refuses_latents_of_another_policy"),
        (
            "anchored=self._anchored, longest=most",
            "longest=most",
            f"{LOSS}::test_stale_states_are_kept_only_where_a_batch_has_one_update",
        ),
        ("back = order.argsort()", "back = order", f"{TRAINER}::test_scoring_in_parts_changes_nothing"),
        ("kept[0][:, prompt - 1 : -1]", "kept[0][:, prompt:]", f"{TRAINER}::test_training_scores_what_was_sampled"),
        (
            "self.log_probs = log_probs[:, prompt - 1 :].detach()",
            "self.log_probs = log_probs[:, prompt - 1 :].detach() + 1e-3",
            f"{TRAINER}::test_training_scores_what_was_sampled",
        ),
    ],
    "rl/advantage.py": [
        (
            "centred = groups - groups.nanmean(dim=1, keepdim=True)",
            "centred = groups - groups.nanmean()",
            f"{PARTS}::test_advantages_by_hand",
        ),
        (
            "_deviation(rewards.double()[None]) + _EPSILON",
            "_deviation(centred.flatten()[None]) + _EPSILON",
            f"{PARTS}::test_advantages_by_hand",
        ),
        ("_EPSILON = 1e-4", "_EPSILON = 1e-1", f"{PARTS}::test_advantages_by_hand"),
        ("(count - 1).clamp(min=1)", "count.clamp(min=1)", f"{PARTS}::test_advantages_by_hand"),
        (
            "centred.nan_to_num(nan=0.0).flatten()",
            "centred.flatten()",
            f"{PARTS}::test_what_was_not_judged_takes_no_part",
        ),
        ("(proximal - rollout).detach()", "(rollout - proximal).detach()", f"{PARTS}::test_importance_weights_by_hand"),
        (
            "log_ratio.exp().clamp(max=cap)",
            "log_ratio.exp().clamp(1 / cap, cap)",
            f"{PARTS}::test_importance_weights_by_hand",
        ),
        (
            "(log_ratio.sum(1) / mask.sum(1).clamp(min=1))[:, None]",
            "log_ratio.sum(1)[:, None]",
            f"{PARTS}::test_importance_weights_by_hand",
        ),
    ],
    "rl/monitor.py": [
        ("(ratio - 1 - log_ratio).sum(),", "(1 / ratio - 1 + log_ratio).sum(),", f"{PARTS}::test_mismatch_by_hand"),
        ("ratio[outside].sum(),", "outside.sum(),", f"{PARTS}::test_mismatch_by_hand"),
        ("mass**2 / (count * squares)", "mass / squares", f"{PARTS}::test_mismatch_by_hand"),
        ("math.sqrt(distance / norm)", "distance / norm", f"{PARTS}::test_mismatch_by_hand"),
        ("parts[:, -1].max().item()", "parts[:, -1].mean().item()", f"{PARTS}::test_mismatch_by_hand"),
        ("self.lengths[self.correct == 1].mean()", "self.lengths.mean()", f"{PARTS}::test_outcomes_by_hand"),
        (
            "(replaced + degenerate.sum().item()) / (replaced + rows)",
            "degenerate.sum().item() / rows",
            f"{PARTS}::test_outcomes_by_hand",
        ),
        (
            '"accuracy_first": self.first_correct.nanmean()',
            '"accuracy_first": self.correct.nanmean()',
            f"{PARTS}::test_outcomes_by_hand",
        ),
        (
            "(own - score(states))[:, 1:] * counted",
            "(score(states) - own)[:, 1:] * counted",
            f"{PARTS}::test_payload_by_hand",
        ),
        (
            "own, counted = score(latents), mask[:, 1:]",
            "own, counted = score(latents), torch.ones_like(mask[:, 1:])",
            f"{PARTS}::test_payload_by_hand",
        ),
        (
            "other = lengths.roll(-1)[:, None] - 1",
            "other = lengths[:, None] - 1",
            f"{PARTS}::test_swapped_latents_repeat_the_other_rows_last",
        ),
    ],
    "rl/trainer.py": [
        (
            "group_advantages(rewards, group, stage.advantage_scale)[mine]",
            "group_advantages(rewards, group)[mine]",
            f"{LOSS}::test_advantages_are_scaled_as_configured",
        ),
        (
            "anchored = self.stage.updates_per_batch == 1",
            "anchored = True",
            f"{LOSS}::test_stale_states_are_kept_only_where_a_batch_has_one_update",
        ),
        (
            'kept = ~flat if stage.degenerate_groups == "drop" else torch.ones_like(flat)',
            "kept = ~flat",
            f"{OPTIONS}::test_degenerate_groups_are_kept_unless_told",
        ),
        (
            "counted = kept & ~everyone.rewards.isnan()",
            "counted = ~everyone.rewards.isnan()",
            f"{OPTIONS}::test_dropped_groups_do_not_count",
        ),
        (
            '"num_items_in_batch": everyone.lengths[counted].sum()',
            '"num_items_in_batch": everyone.lengths.sum()',
            f"{OPTIONS}::test_dropped_groups_do_not_count",
        ),
        (
            'loss = loss / inputs["kept_share"]',
            'loss = loss * inputs["kept_share"]',
            f"{OPTIONS}::test_dropped_groups_do_not_count",
        ),
        ("correct = counted & (everyone.correct == 1)", "correct = counted", f"{OPTIONS}::test_terms_by_hand"),
        (
            "terms = terms - stage.entropy_bonus * mean",
            "terms = terms + stage.entropy_bonus * mean",
            f"{OPTIONS}::test_terms_by_hand",
        ),
        ("terms = terms + stage.standard_weight * loss", "terms = terms + loss", f"{OPTIONS}::test_terms_by_hand"),
        ("self.beta = stage.kl_weight ", "self.beta = bool(stage.kl_weight) * 1.0 ", f"{OPTIONS}::test_terms_by_hand"),
        (
            "scorer = self._scorer(self._reference, batch, ReplayScorer(passes=0), body=body)",
            "scorer = self._scorer(self.model, batch, ReplayScorer(passes=0))",
            f"{OPTIONS}::test_terms_by_hand",
        ),
        (
            "cap = self.stage.importance_cap\n",
            "cap = self.stage.importance_cap and 2.0\n",
            f"{LOSS}::test_losses_by_hand",
        ),
        ("mask, cap, self.stage.importance_level)", "mask, cap)", f"{LOSS}::test_losses_by_hand[gspo]"),
        ('batch["advantages"] = batch["advantages"][:, None] * weights', "pass", f"{LOSS}::test_losses_by_hand[dapo]"),
        ("if self._batch_index() % stage.save_rollouts_every == 0:", "if True:", f"{TRAINER}::test_rollouts_are_kept"),
        (
            "self._batch_index() % stage.probe_every == 0",
            "True",
            f"{OPTIONS}::test_the_probe_stays_the_same_across_a_resume",
        ),
        (
            "return self.state.global_step // self.stage.updates_per_batch",
            "return self.state.global_step",
            f"{TRAINER}::test_two_updates_a_batch_resume_between_batches",
        ),
        ('self._step = state["micro_step"]', "pass", f"{TRAINER}::test_two_updates_a_batch_resume_between_batches"),
        (
            'self._guard.load_state(state["guard"])',
            "pass",
            f"{OPTIONS}::test_the_guard_lowers_the_weight_also_across_a_resume",
        ),
        (
            "self._limits.check(self._row, self.state.global_step + 1)",
            "pass",
            f"{OPTIONS}::test_a_limit_stops_the_run_with_the_reason",
        ),
        (
            "self._collector.rewards.length_weight = guard.weight",
            "pass",
            f"{OPTIONS}::test_the_guard_lowers_the_weight_also_across_a_resume",
        ),
    ],
    "rl/train.py": [
        ("        importance_sampling_level=stage.importance_level,\n", "", f"{LOSS}::test_losses_by_hand[gspo]"),
        ("        loss_type=stage.loss_type,\n", "", f"{LOSS}::test_losses_by_hand"),
        ("epsilon=stage.clip_low,", "epsilon=stage.clip_high,", f"{LOSS}::test_losses_by_hand"),
        (
            '1 + stage.clip_high if stage.loss_type == "cispo" else stage.clip_high',
            "stage.clip_high",
            f"{LOSS}::test_losses_by_hand[cispo]",
        ),
        ("        temperature=stage.temperature,\n", "", f"{TRAINER}::test_training_scores_what_was_sampled"),
        (
            "        num_iterations=stage.updates_per_batch,\n",
            "",
            f"{TRAINER}::test_two_updates_a_batch_resume_between_batches",
        ),
        ("        max_completion_length=stage.max_new_tokens,\n", "", f"{LOSS}::test_losses_by_hand[dr_grpo]"),
        (
            "stage.group_size, stage.reward_bound, remote",
            "stage.group_size, remote",
            f"{OPTIONS}::test_the_bound_of_a_reward_is_the_stages",
        ),
        (
            "            parameter.requires_grad_(False)",
            "            pass",
            f"{TRAINER}::test_standard_mode_leaves_the_feedback_alone",
        ),
        (
            'result["logprob_mismatch_max"] = max(',
            'result["logprob_mismatch_max"] = min(',
            f"{TRAINER}::test_every_step_has_every_metric",
        ),
    ],
    "rl/rollout.py": [
        ("temperature=stage.temperature,", "", f"{PARTS}::test_layout_of_immediate_and_missing_ends"),
        ("mode=stage.mode,", "", f"{PARTS}::test_layout_of_immediate_and_missing_ends"),
        (
            "self.completion_mask * counted[:, None]",
            "self.completion_mask",
            f"{OPTIONS}::test_dropped_groups_do_not_count",
        ),
        (
            '("completion", completions, "right")',
            '("completion", completions, "left")',
            f"{PARTS}::test_layout_of_immediate_and_missing_ends",
        ),
        (
            "SeedSequence([seed, batch, attempt])",
            "SeedSequence([seed, batch])",
            f"{PARTS}::test_sampling_seeds_differ_by_batch_and_run",
        ),
        (
            "rows = range(first_row, first_row + len(each))",
            "rows = range(len(each))",
            f"{PARTS}::test_layout_of_immediate_and_missing_ends",
        ),
    ],
    "rl/guard.py": [
        ("accuracy < before - margin", "accuracy <= before", f"{CONTROL}::test_the_weight_falls_and_comes_back"),
        ("min(configured, weight / factor)", "weight / factor", f"{CONTROL}::test_the_weight_falls_and_comes_back"),
        ("if self.before is None:", "if True:", f"{CONTROL}::test_the_weight_falls_and_comes_back"),
        (
            "step % self.config.every == 0",
            "(step + 1) % self.config.every == 0",
            f"{CONTROL}::test_measured_before_the_first_step_and_every_so_often",
        ),
    ],
    "rl/limits.py": [
        ("told.keys() - self._beyond", "told.keys()", f"{CONTROL}::test_a_warning_is_given_once_until_it_is_over"),
        (
            "(self._beyond - row.keys()) | told.keys()",
            "told.keys()",
            f"{CONTROL}::test_a_warning_is_given_once_until_it_is_over",
        ),
        (
            'crossed(self._limits, row, "stop")',
            'crossed(self._limits, row, "warn")',
            f"{CONTROL}::test_a_warning_is_given_once_until_it_is_over",
        ),
    ],
    "rl/dynamic.py": [
        ("if not math.isnan(value)}) < 2", "}) < 2", f"{CONTROL}::test_degenerate_goes_by_correctness_alone"),
        (
            "range(1, max_resamples + 1)",
            "range(1, max_resamples)",
            f"{CONTROL}::test_groups_are_replaced_up_to_the_bound",
        ),
        ("groups.judgements[old] = judgements[new]", "pass", f"{CONTROL}::test_groups_are_replaced_up_to_the_bound"),
        ("self.first_correct[row],", "judgement.correct,", f"{CONTROL}::test_groups_are_replaced_up_to_the_bound"),
        ("groups.problems[place] = problems[index]", "pass", f"{CONTROL}::test_groups_are_replaced_up_to_the_bound"),
    ],
    "rl/collector.py": [
        ("temperature=0.0,", "temperature=1.0,", f"{OPTIONS}::test_held_out_answers_are_greedy_and_shared_by_ranks"),
        (
            "self.heldout[self.rank :: self.ranks]",
            "self.heldout[self.rank :]",
            f"{OPTIONS}::test_held_out_answers_are_greedy_and_shared_by_ranks",
        ),
        (
            "return flags.count(True), len(flags) - flags.count(None)",
            "return flags.count(True), len(flags)",
            f"{OPTIONS}::test_held_out_answers_are_greedy_and_shared_by_ranks",
        ),
        (
            'stage.length.count == "reasoning"',
            "False",
            f"{OPTIONS}::test_only_reasoning_is_pressed_where_that_is_asked_for",
        ),
        (
            "seed=sampling_seed(self.seed, batch, attempt)",
            "seed=sampling_seed(self.seed, 0, attempt)",
            f"{OPTIONS}::test_without_a_learning_rate_nothing_drifts",
        ),
    ],
    "rl/rewards.py": [
        (
            "_WRONG if cut else verdict for",
            "verdict if cut else verdict for",
            f"{REWARDS}::test_total_is_weighted_and_correctness_shaped_by_length",
        ),
        (
            "sum(w * s for w, s in",
            "sum(s for w, s in",
            f"{REWARDS}::test_total_is_weighted_and_correctness_shaped_by_length",
        ),
        ("_NOT_JUDGED if None in scores else total", "total", f"{REWARDS}::test_what_cannot_be_judged_has_no_reward"),
        (
            "abs(verdict.score) > self._bound",
            "verdict.score > self._bound",
            f"{REWARDS}::test_numbers_that_cannot_be_meant_are_not_judged",
        ),
        (
            'settings["weight"] = self.length_weight',
            "pass",
            f"{OPTIONS}::test_the_guard_lowers_the_weight_also_across_a_resume",
        ),
        ("if scores[row] is not None]\n", "]\n", f"{REWARDS}::test_what_cannot_be_judged_has_no_reward"),
        (
            "lengths or [len(ids) for ids in completion_ids]",
            "[len(ids) for ids in completion_ids]",
            f"{REWARDS}::test_each_score_is_told_apart_and_what_raises_is_no_score",
        ),
        (
            "row // self._group_size for row",
            "row % self._group_size for row",
            f"{REWARDS}::test_group_aware_rewards_get_the_stage_s_groups",
        ),
        (
            "[False if cut else verdict.correct for",
            "[verdict.correct for",
            f"{REWARDS}::test_correctness_of_completions_that_are_no_groups",
        ),
    ],
    "rl/record.py": [
        ('"sample": index % group_size,', '"sample": index,', f"{TRAINER}::test_rollouts_are_kept"),
        (
            'filters=[("step", "<", step)]',
            'filters=[("step", "<=", step)]',
            f"{PARTS}::test_record_survives_a_resume_without_duplicates",
        ),
        (
            "groups.problems[index // group_size]",
            "groups.problems[index % len(groups.problems)]",
            f"{TRAINER}::test_rollouts_are_kept",
        ),
    ],
    "rl/saved.py": [
        ('"temperature", "max_new_tokens"', '"max_new_tokens"', f"{HALVES}::test_a_batch_sampled_otherwise_is_refused"),
        ('"model": Digests({}).of(context.source),', "", f"{HALVES}::test_a_batch_of_another_model_is_refused"),
    ],
    "rl/terms.py": [
        ("* ranks / total.clamp(min=1)", "* ranks / mask.sum().clamp(min=1)", f"{OPTIONS}::test_terms_by_hand"),
    ],
    # --- rewards -------------------------------------------------------------------------------------
    "reward/length.py": [
        (
            "strength = weight * sum(map(bool, correct)) / max(len(correct), 1)",
            "strength = weight",
            f"{LENGTH}::test_formula_by_hand",
            f"{LENGTH}::test_least_spread_and_solve_rate_of_the_default",
        ),
        (
            "scale = max(spread, sigma_min)",
            "scale = spread + sigma_min",
            f"{LENGTH}::test_formula_by_hand",
            f"{LENGTH}::test_least_spread_and_solve_rate_of_the_default",
        ),
        (
            "for length in solved) / len(solved))",
            "for length in solved) / max(len(solved) - 1, 1))",
            f"{LENGTH}::test_formula_by_hand",
        ),
        (
            "solved = [length for length, right in zip(lengths, correct, strict=True) if right]",
            "solved = list(lengths)",
            f"{LENGTH}::test_formula_by_hand",
        ),
        (
            "weight * min(0.0, reward)",
            "weight * reward",
            f"{LENGTH}::test_formula_by_hand",
            f"{LENGTH}::test_correct_is_above_wrong",
        ),
        (
            "abs(target - length), max_penalty)",
            "max(0, length - target), max_penalty)",
            f"{LENGTH}::test_formula_by_hand",
        ),
        (
            "min(max(alpha * (target - length) + delta, 0.0), 1.0)",
            "max(alpha * (target - length) + delta, 0.0)",
            f"{LENGTH}::test_bounded_and_of_the_documented_sign",
            f"{LENGTH}::test_formula_by_hand",
        ),
        ("(1.0 if right else -1.0) - min(", "(1.0 if right else 0.0) - min(", f"{LENGTH}::test_formula_by_hand"),
        ("length - (max_length - buffer)", "length - max_length", f"{LENGTH}::test_formula_by_hand"),
        (
            "price = beta * max(sum(map(bool, correct)), 1) / size",
            "price = beta / size",
            f"{LENGTH}::test_formula_by_hand",
        ),
        (
            "1.0 / (1.0 + alpha * length / mean if mean else 1.0)",
            "1.0 / (1.0 + alpha * length)",
            f"{LENGTH}::test_formula_by_hand",
        ),
        (
            "1.0 + alpha if length <= target else 1.0",
            "1.0 + alpha if length < target else 1.0",
            f"{LENGTH}::test_formula_by_hand",
        ),
        (
            "(1.0, 0.5) if right else (-1.0, -0.5)",
            "(1.0, 0.5) if right else (-0.5, -1.0)",
            f"{LENGTH}::test_formula_by_hand",
            f"{LENGTH}::test_what_being_short_does_for_a_wrong_answer",
        ),
    ],
    "reward/base.py": [
        ("Verdict(score >= 1, float(score))", "Verdict(score > 0, float(score))", "tests/test_reward_load.py"),
        (
            "if not math.isfinite(score):",
            "if math.isnan(score):",
            f"{REWARDS}::test_numbers_that_cannot_be_meant_are_not_judged",
        ),
        (
            "for part in parts.values() if len(parts) > 1 else ():",
            "for part in ():",
            f"{REWARDS}::test_each_score_is_told_apart_and_what_raises_is_no_score",
        ),
        ("if len(results) != rows:", "if False:", "tests/test_reward_load.py"),
        ("self.function(**{**given, **self.args})", "self.function(**given)", "tests/test_reward_load.py"),
    ],
    "reward/extraction.py": [
        (
            "return found[-1] if found else None\n\n\ndef _last_phrase",
            "return found[0] if found else None\n\n\ndef _last_phrase",
            f"{MATH}::test_extraction_is_strict",
        ),
        ("return bare[-1]", "return bare[0]", f"{MATH}::test_extraction_is_strict"),
        ("contents.insert(0, content)", "contents.append(content)", f"{MATH}::test_extraction_is_strict"),
        (
            "answer = found[-1].strip()",
            "answer = found[0].strip()",
            f"{MATH}::test_answer_phrases_are_read_where_asked_for",
        ),
        (
            "    if _CUT_OFF.search(text):\n        return None\n",
            "",
            f"{MATH}::test_answer_phrases_are_read_where_asked_for",
            "tests/test_generations.py::test_what_breaks_off_has_no_answer",
        ),
    ],
    "reward/reasoning.py": [
        ("return place + len(marker)", "return place", REASONING),
        ('max(text.rfind("\\\\boxed"), text.rfind("\\n####"))', 'text.rfind("\\\\boxed")', REASONING),
        ("text.find(marker)", "text.rfind(marker)", REASONING),
    ],
    "reward/math_answer.py": [
        (
            'return Verdict(False, 0.0, error="no_answer")',
            'return Verdict(None, None, error="no_answer")',
            f"{MATH}::test_verdicts_say_what_happened",
        ),
        ("numeric and parse_number(gold) is None", "False", f"{MATH}::test_verdicts_say_what_happened"),
        (
            'return False, "too_complex"\n    given, gold = _sides',
            'return None, "too_complex"\n    given, gold = _sides',
            f"{MATH}::test_endless_answers_are_wrong",
        ),
        (
            "gold = extract_answer(answer) or answer",
            "gold = answer",
            f"{MATH}::test_verdicts_say_what_happened",
            f"{MATH}::test_reward_in_the_call_shape_of_trl",
        ),
        (
            "deepest > MAX_NESTING",
            "False",
            f"{MATH}::test_hostile_formulas_are_wrong",
            f"{MATH}::test_verdicts_say_what_happened",
        ),
        ("if verdict.correct is not right:", "if False:", f"{MATH}::test_self_test_finds_a_broken_grader"),
    ],
    "reward/pool.py": [
        (
            "elif status == OUT_OF_MEMORY:",
            "elif False:",
            f"{POOL}::test_each_kind_of_ending_is_told_apart_and_blames_one_row",
        ),
        (
            "self.waiting.extendleft(reversed(worker.rows))",
            "pass",
            f"{POOL}::test_each_kind_of_ending_is_told_apart_and_blames_one_row",
        ),
        (
            "self.answer_is_bad[self.rows[row][1]] = outcome[0] is None",
            "self.answer_is_bad[self.rows[row][1]] = False",
            f"{POOL}::test_an_answer_that_cannot_be_graded_is_nobodys_fault",
        ),
        (
            "if self.failed_starts == START_ATTEMPTS:",
            "if self.failed_starts == 2 * START_ATTEMPTS:",
            f"{POOL}::test_no_worker_means_not_judged",
        ),
    ],
    "reward/code_tests.py": [
        (
            "text = (defining or blocks or [completion])[-1]",
            "text = (blocks or [completion])[-1]",
            f"{PROGRAMS}::test_extraction",
        ),
        (
            "text = (defining or blocks or [completion])[-1]",
            "text = (defining or blocks or [completion])[0]",
            f"{PROGRAMS}::test_extraction",
        ),
        (
            "return prompt[: stub.start()] + text if opening.search(text) else prompt + text",
            "return prompt + text",
            f"{PROGRAMS}::test_extraction",
        ),
        (
            "correct = passed == asked > 0",
            "correct = passed == asked",
            f"{PROGRAMS}::test_a_program_whose_assertions_are_never_reached_has_not_passed",
        ),
        ("passed / max(asked, 1) if partial else float(correct)", "float(correct)", f"{PROGRAMS}::test_partial_credit"),
        (
            "return [line.rstrip() for line in output.rstrip().splitlines()]",
            "return output.splitlines()",
            f"{PROGRAMS}::test_input_and_output",
        ),
        (
            "if not any(isinstance(node, ast.Assert) for node in asked):",
            "if False:",
            f"{PROGRAMS}::test_forms_of_tests",
        ),
        ("if key not in runs:", "if True:", f"{PROGRAMS}::test_by_name_with_columns_and_equal_programs_once"),
    ],
    "reward/sandbox.py": [
        (
            'return "timeout" if status == -24 else "crash"',
            'return "crash"',
            f"{SANDBOX}::test_endings_by_what_was_reported",
        ),
        ("_STRENGTH[level] >= _STRENGTH[require]", "True", f"{PROGRAMS}::test_too_weak_a_sandbox_is_refused"),
        ('if last.startswith(b"MemoryError"):', "if False:", f"{SANDBOX}::test_endings_by_what_was_reported"),
    ],
    # --- evaluation ----------------------------------------------------------------------------------
    "fbt_rl/evaluation/statistics.py": [
        ("z2 = _z(confidence) ** 2", "z2 = _z(confidence)", f"{STATISTICS}::test_wilson_equals_scipy"),
        ("(1 + confidence) / 2", "confidence", f"{STATISTICS}::test_wilson_equals_scipy"),
        (
            "problems / (problems - 1) * np.sum(residual**2)",
            "np.sum(residual**2)",
            f"{STATISTICS}::test_accuracy_interval_by_hand",
        ),
        (
            "np.clip(spread / max(variance, 1e-300), problems, rows)",
            "np.clip(spread / max(variance, 1e-300), 0, rows)",
            f"{STATISTICS}::test_accuracy_interval_by_hand",
            f"{STATISTICS}::test_accuracy_interval_counts_problems_not_samples",
        ),
        ("stats.hypergeom.pmf(0, n, c, k)", "(1 - c / n) ** k", f"{STATISTICS}::test_pass_at_k_equals_brute_force"),
        (
            "stats.binomtest(better, worse + better, 0.5)",
            "stats.binomtest(better, difference.size, 0.5)",
            f"{STATISTICS}::test_mcnemar_is_the_exact_binomial_test_on_discordant_pairs",
        ),
        ("np.concatenate([difference, [1.0, -1.0]])", "difference", f"{STATISTICS}::test_accuracy_difference_by_hand"),
        (
            "stats.norm.sf((centre + margin) / error)",
            "stats.norm.sf(centre / error)",
            f"{STATISTICS}::test_non_inferiority_is_what_the_interval_says",
        ),
        (
            'Counter(vote for vote in given[:k] if vote != "none")',
            "Counter(given[:k])",
            f"{STATISTICS}::test_majority_and_average_by_hand",
        ),
        (
            '("right" in most) / len(most) if most',
            'float("right" in most) if most',
            f"{STATISTICS}::test_majority_and_average_by_hand",
        ),
        (
            "[group[:k].mean() for group in groups]",
            "[group.mean() for group in groups]",
            f"{STATISTICS}::test_majority_and_average_by_hand",
        ),
        (
            "estimate = float(after.sum() / before.sum())",
            "estimate = float((after / before).mean())",
            f"{STATISTICS}::test_length_ratio_is_a_ratio_of_sums_over_problems",
        ),
        (
            "lambda b, a, axis: a.sum(axis=axis) / b.sum(axis=axis)",
            "lambda b, a, axis: (a / b).mean(axis=axis)",
            f"{STATISTICS}::test_length_ratio_equals_a_plain_bootstrap",
        ),
        (
            "return sums[3] / sums[2] / (sums[1] / sums[0])",
            "return (sides[3] / sides[2]).mean(axis=axis) / (sides[1] / sides[0]).mean(axis=axis)",
            f"{STATISTICS}::test_ratio_of_ratios",
        ),
        (
            "return sums[3] / sums[2] / (sums[1] / sums[0])",
            "return sums[1] / sums[0] / (sums[3] / sums[2])",
            f"{STATISTICS}::test_ratio_of_ratios",
        ),
        ("paired=True,", "paired=False,", f"{STATISTICS}::test_length_ratio_equals_a_plain_bootstrap"),
        (
            "(1 - confidence) / 2, ordered.size, 0.5)) - 1",
            "(1 - confidence) / 2, ordered.size, 0.5))",
            f"{STATISTICS}::test_quantiles_and_median_interval",
        ),
        (
            "right_censored(lengths, truncated)",
            "right_censored(lengths, ~truncated)",
            f"{STATISTICS}::test_kaplan_meier_median_is_that_of_r",
        ),
        (
            "return float((at[first] + at[later[0]]) / 2)",
            "return float(at[first])",
            f"{STATISTICS}::test_kaplan_meier_median_by_hand",
        ),
        (
            'budgets, dtype=float), side="right")',
            'budgets, dtype=float), side="left")',
            f"{STATISTICS}::test_budgets_and_tokens_per_correct",
        ),
        ("if reason is not None])", "])", f"{STATISTICS}::test_median_and_truncated_share"),
        ("return after - before", "return before - after", f"{STATISTICS}::test_accuracy_difference_by_hand"),
    ],
    "fbt_rl/evaluation/summary.py": [
        (
            "length_quantiles(rows.lengths[rows.correct])",
            "length_quantiles(rows.lengths)",
            f"{COMPARE}::test_summary_by_mode",
        ),
        (
            "median_over_correct(rows.lengths, rows.correct)",
            "median_over_correct(rows.lengths, rows.lengths >= 0)",
            f"{COMPARE}::test_summary_by_mode",
        ),
        (
            "fewest = int(samples.min())",
            "fewest = int(samples.max())",
            f"{COMPARE}::test_summary_of_several_samples_and_of_none_judged",
        ),
    ],
    "fbt_rl/evaluation/compare.py": [
        (
            "both = np.isfinite(old_solved) & np.isfinite(new_solved)",
            "both = np.isfinite(old_solved)",
            f"{COMPARE}::test_entry_by_hand",
        ),
        (
            '"no worse" if low > -margin else "unclear"',
            '"no worse" if low > 0 - 2 * margin else "unclear"',
            f"{COMPARE}::test_too_few_problems_to_tell",
        ),
        ("if low > 0 or high < 0:", "if low > 0:", f"{COMPARE}::test_accuracy_lower_by_five_points"),
        ("if pairs < FEWEST_PAIRS:", "if pairs < 1:", f"{COMPARE}::test_few_pairs_show_nothing_about_length"),
        (
            '"shorter" if high < 1 else',
            '"shorter" if low < 1 else',
            f"{COMPARE}::test_no_change_in_length_is_bounded",
            f"{COMPARE}::test_equal_lengths_with_fewer_truncations",
        ),
        (
            "finished = ~old.ever_truncated() & ~new.ever_truncated()",
            "finished = ~new.ever_truncated()",
            f"{COMPARE}::test_equal_lengths_with_fewer_truncations",
            f"{COMPARE}::test_entry_by_hand",
        ),
        ("gold != other and not equivalent(gold, other)[0]", "False", f"{COMPARE}::test_sides_that_cannot_be_paired"),
        (
            "len(set(sides[0].ids) ^ there)",
            "len(set(sides[0].ids) - there)",
            f"{COMPARE}::test_what_is_left_out_is_counted",
        ),
    ],
    "fbt_rl/evaluation/table.py": [
        (
            "self.lengths[self.correct], self.problem[self.correct]",
            "self.lengths, self.problem",
            f"{COMPARE}::test_entry_by_hand",
        ),
        ('table.filter(table["correct"].is_valid())', "table", f"{COMPARE}::test_what_is_left_out_is_counted"),
        ("[: min((place", "[: max((place", f"{EVALUATION}::test_an_answer_ends_before_a_stop_text"),
    ],
    "fbt_rl/evaluation/temperature.py": [
        (
            "rest[temperature] = table.filter(pa.array(~in_dev))",
            "rest[temperature] = table.filter(pa.array(in_dev))",
            f"{COMPARE}::test_a_temperature_is_chosen_on_one_half_and_reported_on_the_other",
        ),
        (
            "best = max(dev,",
            "best = min(dev,",
            f"{COMPARE}::test_a_temperature_is_chosen_on_one_half_and_reported_on_the_other",
        ),
    ],
    "fbt_rl/evaluation/findings.py": [
        (
            'if fewer_truncated and entry["mean_length_after"] < entry["mean_length_before"]:',
            "if False:",
            f"{COMPARE}::test_equal_lengths_with_fewer_truncations",
        ),
        (
            "and median_after < median_before and not shorter:",
            "and False:",
            f"{COMPARE}::test_shorter_only_because_hard_problems_were_dropped",
        ),
        (
            'if low > -entry["margin"] else',
            'if low < -entry["margin"] else',
            f"{COMPARE}::test_accuracy_lower_by_five_points",
        ),
        ("max(1 - low, high - 1)", "min(1 - low, high - 1)", f"{COMPARE}::test_no_change_in_length_is_bounded"),
    ],
    "fbt_rl/evaluation/answering.py": [
        (
            'False if finish == "length" else verdict.correct',
            "verdict.correct",
            f"{EVALUATION}::test_verdicts_reach_the_rows_and_truncated_is_wrong",
        ),
        (
            "row_keys=[index * MAX_SAMPLES + sample for index",
            "row_keys=[index * samples + sample for index",
            f"{EVALUATION}::test_more_samples_keep_the_first_ones",
        ),
        ("replace(self.params, mode=mode)", "self.params", f"{EVALUATION}::test_rows_are_what_decoding_gives"),
        (
            '"answer_tokens": length - thought,',
            '"answer_tokens": length,',
            f"{EVALUATION}::test_tokens_of_reasoning_and_answer_and_the_time_taken",
        ),
    ],
    # --- the run folder ------------------------------------------------------------------------------
    "fbt_rl/artifacts.py": [
        (
            "temporary.replace(path)\n    finally:",
            "pass\n    finally:",
            f"{ARTIFACTS}::test_a_failed_write_leaves_the_old_file",
        ),
        (
            "        temporary.unlink(missing_ok=True)\n",
            "        pass\n",
            f"{ARTIFACTS}::test_a_failed_write_leaves_the_old_file",
        ),
        (
            'row.get("step", 0) <= step',
            'row.get("step", 0) < step',
            f"{ARTIFACTS}::test_metrics_survive_a_cut_line_and_are_truncated_for_a_resume",
        ),
        (
            "sorted(found, key=checkpoint_step)",
            "sorted(found)",
            f"{ARTIFACTS}::test_checkpoints_are_whole_ordered_and_pruned",
        ),
        (
            "if _CHECKPOINT_NAME.fullmatch(path.name)]",
            "if path.is_dir()]",
            f"{ARTIFACTS}::test_checkpoints_are_whole_ordered_and_pruned",
        ),
        (
            "set(self.checkpoints()[-keep:])",
            "set(self.checkpoints()[:keep])",
            f"{ARTIFACTS}::test_checkpoints_are_whole_ordered_and_pruned",
        ),
    ],
    "fbt_rl/inputs.py": [
        ('    "log_every",\n', "", f"{PIPELINE}::test_what_does_not_change_results_may_change"),
        (
            '("seed", "model", "tokenizer", "deepspeed")',
            '("seed", "model", "tokenizer")',
            f"{PIPELINE}::test_a_change_behind_a_finished_stage_is_refused_by_name",
        ),
        (
            'source and f"{source}@{input_hash(inputs[source])[:12]}"',
            "source",
            f"{PIPELINE}::test_what_a_stage_starts_from_is_an_input",
        ),
        (
            "if {key: entry.get(key) for key in stamp} != stamp:",
            "if not entry:",
            f"{PIPELINE}::test_data_counts_by_content_not_by_place_or_time",
            f"{CONTROL}::test_data_of_the_guard_is_an_input_and_limits_are_not",
        ),
        (
            '*([guard["data"]] if guard else [])',
            "",
            f"{CONTROL}::test_data_of_the_guard_is_an_input_and_limits_are_not",
        ),
    ],
    "fbt_rl/plan.py": [
        (
            'if changes and action != "run":',
            "if changes:",
            f"{PIPELINE}::test_work_without_a_checkpoint_is_redone_with_a_new_config",
        ),
        (
            'else "resume" if folder.latest_checkpoint() else "run"',
            'else "run"',
            f"{PIPELINE}::test_half_done_work_of_another_config_is_refused",
        ),
        ("!= workers:", "== 0:", f"{PIPELINE}::test_half_done_work_of_another_config_is_refused"),
        (
            'if not path.name.startswith(".")):',
            "if False):",
            f"{PIPELINE}::test_a_folder_of_something_else_is_left_alone",
        ),
    ],
    "fbt_rl/lock.py": [
        (
            "fcntl.LOCK_SH if shared else fcntl.LOCK_EX",
            "fcntl.LOCK_SH",
            f"{PIPELINE}::test_a_second_process_is_refused",
        ),
    ],
}

# (file, original, replacement, why no test can tell)
EQUIVALENT: list[tuple[str, str, str, str]] = []
