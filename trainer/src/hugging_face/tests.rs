//! Tests of the mapping of tensors, element types, and versions of `config.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use models::config::{Family, Llama, RopeScaling};
use models::{Layout, ModelConfig};
use safetensors::Dtype;
use serde_json::{Value, json};

use super::config_json;
use super::export::is_mount_point;
use super::file_names::{CONFIG, WEIGHTS};
use super::import::ImportReader;
use super::safetensors_header::{self, Entry};
use super::tensor_mapping::{hf_tensors, transpose};
use super::{BUFFER_BYTES, Import};
use crate::failure::Outcome;

/// Returns a Llama with H = 6, K = 2, D = 4.
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

/// Rows of one of our tensors.
#[derive(Debug, PartialEq)]
struct Rows {
    tensor: String,
    start: usize,
    /// Shape of the tensor of transformers.
    shape: Vec<usize>,
}

/// Returns our rows by the name of the tensor of transformers.
fn mapping(config: &ModelConfig) -> BTreeMap<String, Rows> {
    let mut all = BTreeMap::new();
    for tensor in Layout::new(config).tensors() {
        let mut end = 0;
        for theirs in hf_tensors(config, tensor) {
            assert_eq!(theirs.elements().start, end, "{}: no gap and no overlap", tensor.name);
            end = theirs.elements().end;
            assert_eq!(theirs.shape.iter().product::<usize>(), theirs.elements().len());
            let start = theirs.rows.start;
            let rows = Rows { tensor: tensor.name.clone(), start, shape: theirs.shape };
            assert_eq!(all.insert(theirs.name, rows), None);
        }
        assert_eq!(end, tensor.range.len(), "{} is complete", tensor.name);
    }
    all
}

#[test]
fn llama_tensors_have_the_names_of_transformers() {
    let all = mapping(&llama());
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
        let expected = Rows { tensor: ours.to_owned(), start: row, shape: shape.to_vec() };
        assert_eq!(all[theirs], expected, "{theirs}");
    }
    for (theirs, ours) in [
        ("model.norm.weight", "ln_f.weight"),
        ("model.layers.0.input_layernorm.weight", "h.0.ln_1.weight"),
        ("model.layers.0.post_attention_layernorm.weight", "h.0.ln_2.weight"),
    ] {
        let expected = Rows { tensor: ours.to_owned(), start: 0, shape: vec![24] };
        assert_eq!(all[theirs], expected, "{theirs}");
    }
}

#[test]
fn gpt_weights_are_transposed() {
    let all = mapping(&gpt());
    assert_eq!(all.len(), 4 + 2 * 12);
    assert_eq!(all["transformer.h.0.attn.c_attn.weight"].shape, [24, 72]);
    assert_eq!(all["transformer.h.0.attn.c_attn.bias"].shape, [72]);
    assert_eq!(all["transformer.h.0.mlp.c_proj.weight"].shape, [33, 24]);
    assert_eq!(all["transformer.wpe.weight"].shape, [19, 24]);
    let mut to = [0.0; 6];
    transpose(&mut to, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
    assert_eq!(to, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

/// Creates a folder whose every element is its index modulo 251, in one element type.
fn folder_of(
    config: &ModelConfig,
    dtype: Dtype,
    element: impl Fn(usize) -> Vec<u8>,
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new(config);
    let mut entries = BTreeMap::new();
    let mut data = Vec::new();
    for theirs in layout.tensors().iter().flat_map(|tensor| hf_tensors(config, tensor)) {
        let start = data.len() as u64;
        data.extend((0..theirs.elements().len()).flat_map(|index| element(index % 251)));
        let data_offsets = [start, data.len() as u64];
        let entry = Entry { dtype, shape: theirs.shape, data_offsets };
        entries.insert(theirs.name, entry);
    }
    let header = safetensors_header::write(&BTreeMap::new(), &entries).unwrap();
    fs::write(folder.path().join(WEIGHTS), [header, data].concat()).unwrap();
    fs::write(folder.path().join(CONFIG), config_json::write(config).to_string()).unwrap();
    folder
}

fn import(folder: &Path) -> (Layout, Vec<f32>) {
    let layout = Layout::new(&gpt());
    let mut weights = vec![0.0; layout.len()];
    let import = Import::open(folder, &gpt()).unwrap();
    read_all(&mut import.reader(&gpt()), &layout, &mut weights).unwrap();
    (layout, weights)
}

/// Reads all tensors; leaves what is between them unchanged.
fn read_all(reader: &mut ImportReader<'_>, layout: &Layout, weights: &mut [f32]) -> Outcome<()> {
    let mut tensors = layout.tensors().iter();
    tensors.try_for_each(|tensor| reader.read(tensor, 0, &mut weights[tensor.range.clone()]))
}

#[test]
fn every_element_type_is_read() {
    let single = folder_of(&gpt(), Dtype::F32, |index| (index as f32).to_le_bytes().to_vec());
    let brain =
        folder_of(&gpt(), Dtype::BF16, |index| bf16::from_f32(index as f32).to_le_bytes().to_vec());
    let half =
        folder_of(&gpt(), Dtype::F16, |index| f16::from_f32(index as f32).to_le_bytes().to_vec());
    let (layout, weights) = import(single.path());
    assert_eq!(import(brain.path()).1, weights, "integers below 256 are exact in bf16");
    assert_eq!(import(half.path()).1, weights);
    let tensor = layout.tensor("h.0.attn.c_attn.weight").unwrap();
    let row = 5;
    let column = 7;
    let found = weights[tensor.range.start + row * 24 + column];
    assert_eq!(found, ((column * 72 + row) % 251) as f32, "(out, in) from (in, out)");
    let foreign = folder_of(&gpt(), Dtype::I32, |index| (index as i32).to_le_bytes().to_vec());
    let error = Import::open(foreign.path(), &gpt()).unwrap_err().to_string();
    assert!(error.contains("I32"), "{error}");
}

/// Returns our weights if every element of [`folder_of`] is its index modulo 251.
fn expected(config: &ModelConfig, layout: &Layout) -> Vec<f32> {
    let mut all = vec![-1.0; layout.len()];
    for tensor in layout.tensors() {
        for theirs in hf_tensors(config, tensor) {
            let rows = theirs.rows.len();
            let columns = theirs.columns;
            let index = |row, column| match theirs.is_transposed {
                true => column * rows + row,
                false => row * columns + column,
            };
            let ours = &mut all[tensor.range.clone()][theirs.elements()];
            for (at, ours) in ours.iter_mut().enumerate() {
                *ours = (index(at / columns, at % columns) % 251) as f32;
            }
        }
    }
    all
}

/// Reads rows of 24 to 101 elements, and tensors of up to 2,424.
#[test]
fn a_file_is_read_through_a_buffer_of_any_size() {
    let layout = Layout::new(&gpt());
    let config = gpt();
    let expected = expected(&config, &layout);
    for folder in [
        folder_of(&gpt(), Dtype::F32, |index| (index as f32).to_le_bytes().to_vec()),
        folder_of(&gpt(), Dtype::BF16, |index| bf16::from_f32(index as f32).to_le_bytes().to_vec()),
        folder_of(&gpt(), Dtype::F16, |index| f16::from_f32(index as f32).to_le_bytes().to_vec()),
    ] {
        let import = Import::open(folder.path(), &config).unwrap();
        // One element; less than a row; rows and some of the next; whole rows; all of a tensor.
        for bytes in [1, 4, 92, 100, 280, 1000, 3 * 72 * 4, 7 * 33 * 2, 9999, BUFFER_BYTES] {
            let mut weights = vec![-1.0; layout.len()];
            let mut reader = import.reader_buffered(bytes, &config);
            read_all(&mut reader, &layout, &mut weights).unwrap();
            assert!(weights == expected, "{bytes} bytes at a time");
        }
    }
}

/// Reads ranges of 1 to 199 elements, which begin and end inside of rows; in a Llama also ranges
/// over the ends of the tensors that make up one of ours.
#[test]
fn any_elements_of_a_tensor_are_read() {
    for config in [gpt(), llama()] {
        let layout = Layout::new(&config);
        let expected = expected(&config, &layout);
        let element = |index: usize| bf16::from_f32(index as f32).to_le_bytes().to_vec();
        let folder = folder_of(&config, Dtype::BF16, element);
        let import = Import::open(folder.path(), &config).unwrap();
        for bytes in [2, 60, 3 * 72 * 2, BUFFER_BYTES] {
            let mut reader = import.reader_buffered(bytes, &config);
            for tensor in layout.tensors() {
                let whole = &expected[tensor.range.clone()];
                let mut first = 0;
                for count in (1..200).step_by(11).cycle() {
                    let count = count.min(whole.len() - first);
                    let mut found = vec![-1.0; count];
                    reader.read(tensor, first, &mut found).unwrap();
                    let what = format!("{}, {count} from {first}", tensor.name);
                    assert_eq!(found, whole[first..first + count], "{what}, {bytes} bytes");
                    first += count;
                    if first == whole.len() {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn a_sample_tells_folders_apart_by_their_elements_and_by_their_types() {
    let sample =
        |folder: &tempfile::TempDir| Import::open(folder.path(), &gpt()).unwrap().sample().unwrap();
    let single = |index: usize| (index as f32).to_le_bytes().to_vec();
    let first = folder_of(&gpt(), Dtype::F32, single);
    assert_eq!(sample(&first), sample(&folder_of(&gpt(), Dtype::F32, single)));
    let next_step =
        folder_of(&gpt(), Dtype::F32, |index| (index as f32 + 0.5).to_le_bytes().to_vec());
    let narrow = |index: usize| bf16::from_f32(index as f32).to_le_bytes().to_vec();
    let narrow = folder_of(&gpt(), Dtype::BF16, narrow);
    assert_ne!(sample(&first), sample(&next_step));
    assert_ne!(sample(&first), sample(&narrow));
}

#[test]
fn a_file_that_is_truncated_after_the_check_is_named() {
    let folder = folder_of(&gpt(), Dtype::F32, |index| (index as f32).to_le_bytes().to_vec());
    let import = Import::open(folder.path(), &gpt()).unwrap();
    let path = folder.path().join(WEIGHTS);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let layout = Layout::new(&gpt());
    let mut weights = vec![0.0; layout.len()];
    let config = gpt();
    let mut reader = import.reader_buffered(100, &config);
    let error = read_all(&mut reader, &layout, &mut weights).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[test]
fn rope_values_of_all_versions_are_read() {
    let ours = config_json::write(&llama());
    assert_eq!(config_json::check(&llama(), ours.clone()), Ok(()));
    let mut early = ours.clone();
    let kind = early["rope_scaling"].as_object_mut().unwrap().remove("rope_type").unwrap();
    early["rope_scaling"]["type"] = kind;
    assert_eq!(config_json::check(&llama(), early), Ok(()));
    let mut late = ours.clone();
    late["rope_parameters"] = late["rope_scaling"].take();
    late["rope_parameters"]["rope_theta"] = late["rope_theta"].take();
    assert_eq!(config_json::check(&llama(), late.clone()), Ok(()));
    late["rope_parameters"]["rope_theta"] = json!(5e5);
    assert!(config_json::check(&llama(), late).unwrap_err().contains("rope_theta: expected 10000"));
}

#[test]
fn a_value_of_another_model_is_named() {
    for (key, value) in [
        ("model_type", json!("mistral")),
        ("hidden_size", json!(48)),
        ("num_attention_heads", json!(12)),
        ("num_key_value_heads", Value::Null), // the default of transformers is the number of heads
        ("head_dim", json!(8)),
        ("rms_norm_eps", json!(1e-6)),
        ("rope_scaling", Value::Null),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("hidden_act", json!("gelu")),
    ] {
        let mut other = config_json::write(&llama());
        other[key] = value;
        let error = config_json::check(&llama(), other).unwrap_err();
        assert!(error.starts_with(key), "{key}: {error}");
    }
    let mut plain = config_json::write(&gpt());
    plain.as_object_mut().unwrap().remove("n_inner");
    assert!(
        config_json::check(&gpt(), plain).unwrap_err().contains("n_inner: expected 33"),
        "it is 4 C"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn mount_points_are_recognised() {
    assert!(is_mount_point(Path::new("/proc")));
    assert!(!is_mount_point(Path::new("/proc/sys")), "inside a mount");
    let folder = tempfile::tempdir().unwrap();
    assert!(!is_mount_point(folder.path()));
    assert!(!is_mount_point(&folder.path().join("not-there")));
}
