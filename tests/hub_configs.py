"""config.json of published checkpoints."""

BERT_BASE = """{
  "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
  "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
  "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
  "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522}"""
MINILM = """{
  "_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"],
  "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": false, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 384, "initializer_range": 0.02,
  "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
  "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
  "position_embedding_type": "absolute", "transformers_version": "4.8.2", "type_vocab_size": 2,
  "use_cache": true, "vocab_size": 30522}"""
ROBERTA_BASE = """{
  "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
  "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
  "vocab_size": 50265}"""
XLM_ROBERTA_BASE = """{
  "architectures": ["XLMRobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
  "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "xlm-roberta",
  "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": true, "pad_token_id": 1,
  "position_embedding_type": "absolute", "transformers_version": "4.17.0.dev0",
  "type_vocab_size": 1, "use_cache": true, "vocab_size": 250002}"""
CAMEMBERT_BASE = """{
  "architectures": ["CamembertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
  "bos_token_id": 5, "eos_token_id": 6, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "camembert",
  "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": true, "pad_token_id": 1,
  "type_vocab_size": 1, "vocab_size": 32005}"""
ALBERT_BASE_V2 = """{
  "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
  "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128,
  "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new", "hidden_dropout_prob": 0,
  "hidden_size": 768, "initializer_range": 0.02, "inner_group_num": 1,
  "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
  "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12,
  "num_hidden_groups": 1, "num_hidden_layers": 12, "num_memory_blocks": 0, "pad_token_id": 0,
  "type_vocab_size": 2, "vocab_size": 30000}"""
ELECTRA_SMALL = """{
  "architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.1,
  "embedding_size": 128, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 256,
  "initializer_range": 0.02, "intermediate_size": 1024, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512, "model_type": "electra", "num_attention_heads": 4,
  "num_hidden_layers": 12, "pad_token_id": 0, "summary_activation": "gelu",
  "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": true,
  "type_vocab_size": 2, "vocab_size": 30522}"""
ELECTRA_GENERATOR = """{
  "architectures": ["ElectraForMaskedLM"], "attention_probs_dropout_prob": 0.1,
  "embedding_size": 768, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 256,
  "initializer_range": 0.02, "intermediate_size": 1024, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512, "model_type": "electra", "num_attention_heads": 4,
  "num_hidden_layers": 12, "pad_token_id": 0, "summary_activation": "gelu",
  "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": true,
  "type_vocab_size": 2, "vocab_size": 30522}"""
MODERNBERT_BASE = """{
  "architectures": ["ModernBertForMaskedLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": false,
  "classifier_dropout": 0.0, "classifier_pooling": "mean", "cls_token_id": 50281,
  "decoder_bias": true, "deterministic_flash_attn": false, "embedding_dropout": 0.0,
  "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
  "gradient_checkpointing": false, "hidden_activation": "gelu", "hidden_size": 768,
  "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152,
  "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0,
  "max_position_embeddings": 8192, "mlp_bias": false, "mlp_dropout": 0.0,
  "model_type": "modernbert", "norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 12,
  "num_hidden_layers": 22, "pad_token_id": 50283, "position_embedding_type": "absolute",
  "repad_logits_with_grad": false, "sep_token_id": 50282, "sparse_pred_ignore_index": -100,
  "sparse_prediction": false, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0",
  "vocab_size": 50368}"""
BERT_BASE_NER = """{
  "_num_labels": 9, "architectures": ["BertForTokenClassification"],
  "attention_probs_dropout_prob": 0.1, "directionality": "bidi", "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "id2label": {"0": "O", "1": "B-MISC", "2": "I-MISC", "3": "B-PER", "4": "I-PER", "5": "B-ORG",
    "6": "I-ORG", "7": "B-LOC", "8": "I-LOC"},
  "initializer_range": 0.02, "intermediate_size": 3072,
  "label2id": {"B-LOC": 7, "B-MISC": 1, "B-ORG": 5, "B-PER": 3, "I-LOC": 8, "I-MISC": 2,
    "I-ORG": 6, "I-PER": 4, "O": 0},
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": true, "pad_token_id": 0,
  "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
  "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "type_vocab_size": 2,
  "vocab_size": 28996}"""
STAR_RATING = """{
  "_num_labels": 5, "architectures": ["BertForSequenceClassification"],
  "attention_probs_dropout_prob": 0.1, "directionality": "bidi",
  "finetuning_task": "sentiment-analysis", "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 768,
  "id2label": {"0": "1 star", "1": "2 stars", "2": "3 stars", "3": "4 stars", "4": "5 stars"},
  "initializer_range": 0.02, "intermediate_size": 3072,
  "label2id": {"1 star": 0, "2 stars": 1, "3 stars": 2, "4 stars": 3, "5 stars": 4},
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": true, "pad_token_id": 0,
  "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
  "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "type_vocab_size": 2,
  "vocab_size": 105879, "xla_device": null}"""
MS_MARCO_MINILM = """{
  "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
  "architectures": ["BertForSequenceClassification"], "attention_probs_dropout_prob": 0.1,
  "classifier_dropout": null, "gradient_checkpointing": false, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"},
  "initializer_range": 0.02, "intermediate_size": 1536, "label2id": {"LABEL_0": 0},
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
  "position_embedding_type": "absolute",
  "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
  "transformers_version": "4.8.2", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522}"""
BGE_SMALL = """{
  "_name_or_path": "BAAI/bge-small-en-v1.5", "architectures": ["BertModel"],
  "attention_probs_dropout_prob": 0.1, "classifier_dropout": null, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"},
  "initializer_range": 0.02, "intermediate_size": 1536, "label2id": {"LABEL_0": 0},
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
  "position_embedding_type": "absolute", "torch_dtype": "float32",
  "transformers_version": "4.31.0", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522}"""
TWITTER_SENTIMENT = """{
  "architectures": ["RobertaForSequenceClassification"], "attention_probs_dropout_prob": 0.1,
  "bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": false, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "initializer_range": 0.02,
  "intermediate_size": 3072, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
  "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "type_vocab_size": 1,
  "vocab_size": 50265}"""
ROBERTA_SQUAD2 = """{
  "architectures": ["RobertaForQuestionAnswering"], "attention_probs_dropout_prob": 0.1,
  "bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": false, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
  "intermediate_size": 3072, "language": "english", "layer_norm_eps": 1e-05,
  "max_position_embeddings": 514, "model_type": "roberta", "name": "Roberta",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
  "position_embedding_type": "absolute", "transformers_version": "4.3.0", "type_vocab_size": 1,
  "use_cache": true, "vocab_size": 50265}"""
MULTILINGUAL_E5 = """{
  "_name_or_path": "tmp/", "architectures": ["XLMRobertaModel"],
  "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "classifier_dropout": null,
  "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
  "max_position_embeddings": 514, "model_type": "xlm-roberta", "num_attention_heads": 12,
  "num_hidden_layers": 12, "output_past": true, "pad_token_id": 1,
  "position_embedding_type": "absolute", "torch_dtype": "float32",
  "transformers_version": "4.29.0.dev0", "type_vocab_size": 1, "use_cache": true,
  "vocab_size": 250002}"""
ALBERT_XXLARGE_V2 = """{
  "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
  "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128,
  "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu", "hidden_dropout_prob": 0,
  "hidden_size": 4096, "initializer_range": 0.02, "inner_group_num": 1,
  "intermediate_size": 16384, "layer_norm_eps": 1e-12, "layers_to_keep": null,
  "max_position_embeddings": 512, "model_type": "albert", "net_structure_type": 0,
  "num_attention_heads": 64, "num_hidden_groups": 1, "num_hidden_layers": 12,
  "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30000}"""
ELECTRA_BASE = """{
  "architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.1,
  "embedding_size": 768, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512, "model_type": "electra", "num_attention_heads": 12,
  "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522}"""
_MODERNBERT = """
  "attention_bias": false, "attention_dropout": 0.0, "classifier_activation": "gelu",
  "classifier_bias": false, "classifier_dropout": 0.0, "classifier_pooling": "mean",
  "decoder_bias": true, "deterministic_flash_attn": false, "embedding_dropout": 0.0,
  "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": false,
  "hidden_activation": "gelu", "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
  "layer_norm_eps": 1e-05, "local_attention": 128, "max_position_embeddings": 8192,
  "mlp_bias": false, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": false,
  "norm_eps": 1e-05, "repad_logits_with_grad": false, "sparse_pred_ignore_index": -100,
  "sparse_prediction": false,"""
_ENGLISH = """
  "bos_token_id": 50281, "cls_token_id": 50281, "eos_token_id": 50282, "local_rope_theta": 10000.0,
  "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
  "vocab_size": 50368,"""
MODERNBERT_LARGE = f"""{{{_MODERNBERT}{_ENGLISH}
  "architectures": ["ModernBertForMaskedLM"], "hidden_size": 1024, "intermediate_size": 2624,
  "num_attention_heads": 16, "num_hidden_layers": 28, "torch_dtype": "float32",
  "transformers_version": "4.47.0.dev0"}}"""
GTE_MODERNBERT = f"""{{{_MODERNBERT}{_ENGLISH}
  "architectures": ["ModernBertModel"], "hidden_size": 768, "intermediate_size": 1152,
  "num_attention_heads": 12, "num_hidden_layers": 22, "reference_compile": null,
  "torch_dtype": "float16", "transformers_version": "4.48.0"}}"""
MMBERT_BASE = f"""{{{_MODERNBERT}
  "architectures": ["ModernBertForMaskedLM"], "bos_token_id": 2, "cls_token_id": 1,
  "dtype": "float32", "eos_token_id": 1, "hidden_size": 768, "intermediate_size": 1152,
  "local_rope_theta": 160000.0,
  "mask_token_id": 4, "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 0,
  "position_embedding_type": "sans_pos", "sep_token_id": 1, "transformers_version": "4.48.0",
  "unk_token_id": 3, "vocab_size": 256000}}"""
