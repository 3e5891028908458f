//! Tensors of each family's model, in the order of backward.

use super::{ALIGN, Init, Layout, Segment, Tensor, head_rows};
use crate::ModelConfig;
use crate::config::Family;

/// Standard deviation of initial weights: that of GPT-2. The Llama papers do not give theirs; this
/// is the default of Megatron-LM and Hugging Face transformers for both families.
const DEVIATION: f32 = 0.02;

impl Layout {
    /// The tight layout of a model: segments follow each other without padding for buckets.
    ///
    /// A Llama block has one matrix for queries, keys and values (`attn.c_attn.weight`, rows of all
    /// query heads, then of the key heads, then of the value heads) and one for gate and up
    /// (`mlp.gate_up.weight`, rows of the gate first); its norms have GPT's names.
    pub fn new(config: &ModelConfig) -> Self {
        let mut builder = Builder::default();
        if !config.is_tied() {
            builder.segment("head", |b| {
                b.head("lm_head.weight", config);
            });
        }
        builder.segment("final_norm", |b| b.norm(config, "ln_f"));
        for layer in (0..config.layers).rev() {
            builder.segment(&format!("h.{layer}"), |b| b.block(config, layer));
        }
        builder.segment("embeddings", |b| {
            if config.family == Family::Gpt {
                b.matrix("wpe.weight", config.context, config.width, DEVIATION);
            }
            if config.is_tied() {
                b.head("wte.weight", config);
            } else {
                b.matrix("wte.weight", config.vocabulary, config.width, DEVIATION);
            }
        });
        builder.layout
    }
}

#[derive(Debug)]
struct Builder {
    layout: Layout,
}

impl Default for Builder {
    fn default() -> Self {
        Self { layout: Layout { tensors: Vec::new(), segments: Vec::new(), len: 0 } }
    }
}

impl Builder {
    fn segment(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        let start = self.layout.len;
        let first = self.layout.tensors.len();
        fill(self);
        self.layout.segments.push(Segment {
            name: name.to_owned(),
            range: start..self.layout.len,
            tensors: first..self.layout.tensors.len(),
        });
    }

    /// Adds a block in the order of backward: feed-forward, second norm, attention, first norm.
    fn block(&mut self, config: &ModelConfig, layer: usize) {
        let ModelConfig { width, feed_forward, .. } = *config;
        // GPT-2's 1 / sqrt(residual additions), which Megatron-LM uses for Llama as well.
        let residual = DEVIATION / ((2 * config.layers) as f32).sqrt();
        let (expand, expanded) = match config.family {
            Family::Gpt => ("mlp.c_fc", feed_forward),
            Family::Llama(_) => ("mlp.gate_up", 2 * feed_forward),
        };
        let name = |part: &str| format!("h.{layer}.{part}");
        self.linear(config, &name("mlp.c_proj"), [width, feed_forward], residual);
        self.linear(config, &name(expand), [expanded, width], DEVIATION);
        self.norm(config, &name("ln_2"));
        self.linear(config, &name("attn.c_proj"), [width, width], residual);
        self.linear(config, &name("attn.c_attn"), [config.qkv_width(), width], DEVIATION);
        self.norm(config, &name("ln_1"));
    }

    fn linear(&mut self, config: &ModelConfig, name: &str, shape: [usize; 2], deviation: f32) {
        let [rows, columns] = shape;
        self.matrix(&format!("{name}.weight"), rows, columns, deviation);
        self.bias(config, name, rows);
    }

    fn norm(&mut self, config: &ModelConfig, name: &str) {
        self.tensor(format!("{name}.weight"), vec![config.width], false, Init::Ones);
        self.bias(config, name, config.width);
    }

    fn bias(&mut self, config: &ModelConfig, name: &str, len: usize) {
        if config.family == Family::Gpt {
            self.tensor(format!("{name}.bias"), vec![len], false, Init::Zeros);
        }
    }

    /// The head's matrix, and its rows of padding.
    fn head(&mut self, name: &str, config: &ModelConfig) {
        let ModelConfig { vocabulary, width, .. } = *config;
        let start = self.layout.len;
        self.matrix(name, vocabulary, width, DEVIATION);
        self.layout.len = (start + head_rows(vocabulary) * width).next_multiple_of(ALIGN);
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize, deviation: f32) {
        self.tensor(name.to_owned(), vec![rows, columns], true, Init::Normal(deviation));
    }

    fn tensor(&mut self, name: String, shape: Vec<usize>, decay: bool, init: Init) {
        let start = self.layout.len;
        let range = start..start + shape.iter().product::<usize>();
        self.layout.len = range.end.next_multiple_of(ALIGN);
        self.layout.tensors.push(Tensor { name, shape, range, decay, init });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_order_and_alignment, names};
    use super::*;
    use crate::config::Llama;

    /// H = 6, K = 2, D = 4.
    fn odd(tied: bool) -> ModelConfig {
        ModelConfig {
            family: Family::Llama(Llama { key_value_heads: 2, tied, ..Llama::plain(6) }),
            layers: 2,
            width: 24,
            heads: 6,
            feed_forward: 33,
            vocabulary: 101,
            context: 19,
        }
    }

    #[test]
    fn an_untied_head_is_ready_first() {
        let layout = Layout::new(&odd(false));
        check_order_and_alignment(&layout);
        let segments: Vec<&str> = layout.segments().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(segments, ["head", "final_norm", "h.1", "h.0", "embeddings"]);
        assert_eq!(names(&layout, 0), ["lm_head.weight"]);
        assert_eq!(names(&layout, 1), ["ln_f.weight"]);
        let block = "mlp.c_proj mlp.gate_up ln_2 attn.c_proj attn.c_attn ln_1".split(' ');
        let block: Vec<String> = block.map(|part| format!("h.1.{part}.weight")).collect();
        assert_eq!(names(&layout, 2), block);
        assert_eq!(names(&layout, 4), ["wte.weight"]);
    }

    #[test]
    fn a_tied_head_is_the_token_table() {
        let tied = Layout::new(&odd(true));
        let untied = Layout::new(&odd(false));
        assert_eq!(names(&tied, 0), ["ln_f.weight"]);
        assert_eq!(untied.parameters() - tied.parameters(), 101 * 24);
    }

    #[test]
    fn the_head_s_matrix_has_rows_of_padding() {
        for (tied, segment) in [(true, 3), (false, 0)] {
            let layout = Layout::new(&odd(tied));
            let segment = &layout.segments()[segment];
            let head = &layout.tensors()[segment.tensors.end - 1];
            assert_eq!(head.shape, [101, 24]);
            assert_eq!(segment.range.end, head.range.start + 128 * 24, "{}", segment.name);
        }
    }

    #[test]
    fn matrices_hold_grouped_queries_and_both_halves_of_swiglu() {
        let layout = Layout::new(&odd(false));
        let shape = |name: &str| layout.tensor(name).unwrap().shape.clone();
        assert_eq!(shape("h.0.attn.c_attn.weight"), [(6 + 2 + 2) * 4, 24]);
        assert_eq!(shape("h.0.attn.c_proj.weight"), [24, 24]);
        assert_eq!(shape("h.0.mlp.gate_up.weight"), [66, 24]);
        assert_eq!(shape("h.0.mlp.c_proj.weight"), [24, 33]);
        let init = |name: &str| layout.tensor(name).unwrap().init;
        assert_eq!(init("h.0.mlp.c_proj.weight"), Init::Normal(0.02 / 2.0));
        assert_eq!(init("h.0.mlp.gate_up.weight"), Init::Normal(0.02));
        assert_eq!(init("lm_head.weight"), Init::Normal(0.02));
        assert_eq!(init("h.0.ln_1.weight"), Init::Ones);
    }
}
