"""What a model folder says that is not known is refused by name, file by file."""

import json

import pytest

from encoder_fast.errors import ConfigError
from encoder_fast.recipe import read_recipe


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("modules.json", [{"path": "", "type": "sentence_transformers.models.CNN"}], "CNN"),
        ("modules.json", [{"path": "", "type": "mine.Pooling"}], "mine.Pooling"),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "attention"),
        ("1_Pooling/config.json", {"pooling_mode_new": True}, "pooling_mode_new"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "os.system"),
        ("2_Dense/config.json", {"in_features": "two"}, "in_features must be a number, got two"),
        ("1_Pooling/config.json", ["mean"], "must hold a JSON object, got list"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "token_embeddings"),
        ("sentence_bert_config.json", {"query_length": 9}, "query_length"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "maxsim"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "'x'"),
    ],
)
def test_what_a_folder_says_and_we_do_not_know_is_refused(tmp_path, file, change, words):
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": p, "type": f"sentence_transformers.models.{k}"} for p, k in kinds.items()]
    contents = {"modules.json": modules, "1_Pooling/config.json": {}, file: change}
    if file.startswith("2_Dense"):
        contents[file] = {"in_features": 2, "out_features": 2, **change}
    else:
        contents["modules.json"] = contents["modules.json"][:2]
    for name, value in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(ConfigError, match=words):
        read_recipe(tmp_path)
