//! The correspondence of names and values, element types, and spellings of a description.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use models::config::{Family, Llama, RopeScaling};
use models::{Layout, ModelConfig};
use serde_json::{Value, json};

use super::description::{check, describe};
use super::export::is_mounted;
use super::header::{self, Entry};
use super::pieces::{pieces, transpose};
use super::{CONFIG, Import, PART_BYTES, WEIGHTS};

/// H = 6, K = 2, D = 4.
fn llama() -> ModelConfig {
    let scaling = RopeScaling {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192,
    };
    let family = Llama { key_value_heads: 2, rope_scaling: Some(scaling), ..Llama::plain(6) };
    ModelConfig {
        family: Family::Llama(family),
        layers: 2,
        width: 24,
        heads: 6,
        feed_forward: 33,
        vocabulary: 101,
        context: 19,
    }
}

fn gpt() -> ModelConfig {
    ModelConfig { family: Family::Gpt, ..llama() }
}

/// Their tensors by name: which of ours, which elements, which shape.
fn correspondence(config: &ModelConfig) -> BTreeMap<String, (String, usize, Vec<usize>)> {
    let mut all = BTreeMap::new();
    for tensor in Layout::new(config).tensors() {
        let mut end = 0;
        for piece in pieces(config, tensor) {
            assert_eq!(piece.elements().start, end, "{}: no gap and no overlap", tensor.name);
            end = piece.elements().end;
            assert_eq!(piece.shape.iter().product::<usize>(), piece.elements().len());
            let place = (tensor.name.clone(), piece.rows.start, piece.shape);
            assert_eq!(all.insert(piece.name, place), None);
        }
        assert_eq!(end, tensor.range.len(), "{} is there in full", tensor.name);
    }
    all
}

#[test]
fn llama_names_are_theirs() {
    let all = correspondence(&llama());
    assert_eq!(all.len(), 3 + 2 * 9);
    for (theirs, ours, row, shape) in [
        ("model.embed_tokens.weight", "wte.weight", 0, [101, 24]),
        ("lm_head.weight", "lm_head.weight", 0, [101, 24]),
        ("model.layers.1.self_attn.q_proj.weight", "h.1.attn.c_attn.weight", 0, [24, 24]),
        ("model.layers.1.self_attn.k_proj.weight", "h.1.attn.c_attn.weight", 24, [8, 24]),
        ("model.layers.1.self_attn.v_proj.weight", "h.1.attn.c_attn.weight", 32, [8, 24]),
        ("model.layers.0.self_attn.o_proj.weight", "h.0.attn.c_proj.weight", 0, [24, 24]),
        ("model.layers.0.mlp.gate_proj.weight", "h.0.mlp.gate_up.weight", 0, [33, 24]),
        ("model.layers.0.mlp.up_proj.weight", "h.0.mlp.gate_up.weight", 33, [33, 24]),
        ("model.layers.0.mlp.down_proj.weight", "h.0.mlp.c_proj.weight", 0, [24, 33]),
    ] {
        assert_eq!(all[theirs], (ours.to_owned(), row, shape.to_vec()), "{theirs}");
    }
    for (theirs, ours) in [
        ("model.norm.weight", "ln_f.weight"),
        ("model.layers.0.input_layernorm.weight", "h.0.ln_1.weight"),
        ("model.layers.0.post_attention_layernorm.weight", "h.0.ln_2.weight"),
    ] {
        assert_eq!(all[theirs], (ours.to_owned(), 0, vec![24]), "{theirs}");
    }
}

#[test]
fn gpt_weights_are_in_by_out() {
    let all = correspondence(&gpt());
    assert_eq!(all.len(), 4 + 2 * 12);
    assert_eq!(all["transformer.h.0.attn.c_attn.weight"].2, [24, 72]);
    assert_eq!(all["transformer.h.0.attn.c_attn.bias"].2, [72]);
    assert_eq!(all["transformer.h.0.mlp.c_proj.weight"].2, [33, 24]);
    assert_eq!(all["transformer.wpe.weight"].2, [19, 24]);
    let mut to = [0.0; 6];
    transpose(&mut to, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
    assert_eq!(to, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

/// A GPT folder whose every element is its index modulo 251, in one element type.
fn folder_of(dtype: &str, element: impl Fn(usize) -> Vec<u8>) -> tempfile::TempDir {
    let (folder, config) = (tempfile::tempdir().unwrap(), gpt());
    let (mut entries, mut data) = (BTreeMap::new(), Vec::new());
    for piece in Layout::new(&config).tensors().iter().flat_map(|tensor| pieces(&config, tensor)) {
        let start = data.len() as u64;
        data.extend((0..piece.elements().len()).flat_map(|index| element(index % 251)));
        let data_offsets = [start, data.len() as u64];
        let entry = Entry { dtype: dtype.to_owned(), shape: piece.shape, data_offsets };
        entries.insert(piece.name, entry);
    }
    let header = header::write(&BTreeMap::new(), &entries).unwrap();
    fs::write(folder.path().join(WEIGHTS), [header, data].concat()).unwrap();
    fs::write(folder.path().join(CONFIG), describe(&config).to_string()).unwrap();
    folder
}

fn import(folder: &Path) -> (Layout, Vec<f32>) {
    let layout = Layout::new(&gpt());
    let mut weights = vec![0.0; layout.len()];
    Import::open(folder, &gpt()).unwrap().load(&gpt(), &layout, &mut weights).unwrap();
    (layout, weights)
}

#[test]
fn every_element_type_is_read_and_lands_in_its_place() {
    let single = folder_of("F32", |index| (index as f32).to_le_bytes().to_vec());
    let brain = folder_of("BF16", |index| bf16::from_f32(index as f32).to_le_bytes().to_vec());
    let half = folder_of("F16", |index| f16::from_f32(index as f32).to_le_bytes().to_vec());
    let (layout, weights) = import(single.path());
    assert_eq!(import(brain.path()).1, weights, "integers below 256 are exact in bf16");
    assert_eq!(import(half.path()).1, weights);
    let tensor = layout.tensor("h.0.attn.c_attn.weight").unwrap();
    let (row, column) = (5, 7);
    let found = weights[tensor.range.start + row * 24 + column];
    assert_eq!(found, ((column * 72 + row) % 251) as f32, "(out, in) from (in, out)");
    let foreign = folder_of("I32", |index| (index as i32).to_le_bytes().to_vec());
    let error = Import::open(foreign.path(), &gpt()).unwrap_err().to_string();
    assert!(error.contains("I32"), "{error}");
}

/// The elements of a folder of ours whose every element is its index modulo 251.
fn expected(layout: &Layout) -> Vec<f32> {
    let mut all = vec![-1.0; layout.len()];
    for tensor in layout.tensors() {
        for piece in pieces(&gpt(), tensor) {
            let (rows, columns) = (piece.rows.len(), piece.columns);
            let index = |row, column| match piece.is_transposed {
                true => column * rows + row,
                false => row * columns + column,
            };
            let ours = &mut all[tensor.range.clone()][piece.elements()];
            for (at, ours) in ours.iter_mut().enumerate() {
                *ours = (index(at / columns, at % columns) % 251) as f32;
            }
        }
    }
    all
}

/// Rows of theirs have 24 to 101 elements, tensors up to 2,424.
#[test]
fn a_file_is_read_in_parts_of_any_size() {
    let layout = Layout::new(&gpt());
    let (config, expected) = (gpt(), expected(&layout));
    for folder in [
        folder_of("F32", |index| (index as f32).to_le_bytes().to_vec()),
        folder_of("BF16", |index| bf16::from_f32(index as f32).to_le_bytes().to_vec()),
        folder_of("F16", |index| f16::from_f32(index as f32).to_le_bytes().to_vec()),
    ] {
        let import = Import::open(folder.path(), &config).unwrap();
        // One element; less than a row; rows and some of the next; whole rows; all of a tensor.
        for part_bytes in [1, 4, 92, 100, 280, 1000, 3 * 72 * 4, 7 * 33 * 2, 9999, PART_BYTES] {
            let mut weights = vec![-1.0; layout.len()];
            import.load_by(part_bytes, &config, &layout, &mut weights).unwrap();
            assert!(weights == expected, "{part_bytes} bytes at a time");
        }
    }
}

#[test]
fn a_file_that_was_cut_after_it_was_checked_is_named() {
    let folder = folder_of("F32", |index| (index as f32).to_le_bytes().to_vec());
    let import = Import::open(folder.path(), &gpt()).unwrap();
    let path = folder.path().join(WEIGHTS);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let layout = Layout::new(&gpt());
    let error = import.load_by(100, &gpt(), &layout, &mut vec![0.0; layout.len()]).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn both_spellings_of_rope_are_understood() {
    let ours = describe(&llama());
    assert_eq!(check(&llama(), ours.clone()), Ok(()));
    let mut early = ours.clone();
    let kind = early["rope_scaling"].as_object_mut().unwrap().remove("rope_type").unwrap();
    early["rope_scaling"]["type"] = kind;
    assert_eq!(check(&llama(), early), Ok(()));
    let mut late = ours.clone();
    late["rope_parameters"] = late["rope_scaling"].take();
    late["rope_parameters"]["rope_theta"] = late["rope_theta"].take();
    assert_eq!(check(&llama(), late.clone()), Ok(()));
    late["rope_parameters"]["rope_theta"] = json!(5e5);
    assert!(check(&llama(), late).unwrap_err().contains("rope_theta: expected 10000"));
}

#[test]
fn another_model_is_named_by_its_key() {
    for (key, value) in [
        ("model_type", json!("mistral")),
        ("hidden_size", json!(48)),
        ("num_attention_heads", json!(12)),
        ("num_key_value_heads", Value::Null), // transformers then takes as many as heads
        ("head_dim", json!(8)),
        ("rms_norm_eps", json!(1e-6)),
        ("rope_scaling", Value::Null),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("hidden_act", json!("gelu")),
    ] {
        let mut description = describe(&llama());
        description[key] = value;
        let error = check(&llama(), description).unwrap_err();
        assert!(error.starts_with(key), "{key}: {error}");
    }
    let mut plain = describe(&gpt());
    plain.as_object_mut().unwrap().remove("n_inner");
    assert!(check(&gpt(), plain).unwrap_err().contains("n_inner: expected 33"), "it is 4 C");
}

#[cfg(target_os = "linux")]
#[test]
fn a_mounted_folder_cannot_be_replaced() {
    assert!(is_mounted(Path::new("/proc")));
    assert!(!is_mounted(Path::new("/proc/sys")), "inside of one");
    let folder = tempfile::tempdir().unwrap();
    assert!(!is_mounted(folder.path()));
    assert!(!is_mounted(&folder.path().join("not-there")));
}
