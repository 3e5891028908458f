//! The operations of a network, and what each has to do.

use super::Operations;
use crate::fused::linear::Linear;
use crate::fused::size::Activation;
use crate::layout::head_rows;
use crate::meter::Work;
use crate::meter::{Kind, Op, Role};
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::{Shape, Sums};
use crate::ops::work;

impl<E: CudaElement> Operations<E> {
    /// All of them.
    pub(super) fn list(&self) -> Vec<(Op, Work)> {
        let mut list = self.embeddings_and_norms();
        for linear in Linear::ALL {
            self.add_linear(&mut list, linear);
        }
        self.add_attention(&mut list);
        self.add_activation(&mut list);
        self.add_head(&mut list);
        self.add_update(&mut list);
        list
    }

    fn embeddings_and_norms(&self) -> Vec<(Op, Work)> {
        let size = &self.size;
        let stream = size.rows * size.width;
        let tables = 1 + usize::from(self.ranges.embeddings.positions.is_some());
        vec![
            ((Role::Embedding, Kind::Forward), work::embedding::<E>(stream, tables)),
            ((Role::Embedding, Kind::Backward), work::embedding_backward::<E>(stream, tables)),
            ((Role::Norm, Kind::Forward), size.norm_work::<E>(false)),
            ((Role::Norm, Kind::Backward), size.norm_work::<E>(true)),
        ]
    }

    fn add_linear(&self, list: &mut Vec<(Op, Work)>, linear: Linear) {
        let role = linear.role();
        let shape = self.size.linear(linear);
        let forward = self.forward_matrices(linear);
        let input = self.input_matrices(linear);
        list.push(((role, Kind::Forward), work::linear::<E>(shape, forward)));
        list.push(((role, Kind::Input), work::linear_input::<E>(shape, input)));
        list.push(((role, Kind::Weight), work::linear_weight::<E>(shape, Sums::Add)));
        if self.ranges.blocks[0].linear(linear).bias.is_some() {
            list.push(((role, Kind::Bias), work::linear_bias::<E>(shape)));
        }
    }

    /// Matrices beside X, W and Y that the epilogue moves: a residual, or what is before GELU.
    fn forward_matrices(&self, linear: Linear) -> usize {
        let has_gelu = self.size.activation == Activation::Gelu;
        match linear {
            Linear::AttentionIn => 0,
            Linear::AttentionOut | Linear::Contract => 1,
            Linear::Expand => usize::from(has_gelu),
        }
    }

    /// The same of the gradient of the input: what was before GELU.
    fn input_matrices(&self, linear: Linear) -> usize {
        usize::from(linear == Linear::Contract && self.size.activation == Activation::Gelu)
    }

    fn add_attention(&self, list: &mut Vec<(Op, Work)>) {
        let shape = &self.size.attention;
        if self.kernels.rope.is_some() {
            list.push(((Role::Rope, Kind::Forward), self.size.rope_work::<E>()));
        }
        list.push(((Role::Attention, Kind::Forward), work::attention::<E>(shape)));
        list.push(((Role::Attention, Kind::Backward), work::attention_backward::<E>(shape)));
    }

    /// GELU and its gradient are epilogues.
    fn add_activation(&self, list: &mut Vec<(Op, Work)>) {
        if self.size.activation == Activation::SwiGlu {
            let elements = self.size.rows * self.size.feed_forward;
            let of = |kind, matrices| {
                ((Role::Activation, kind), work::elementwise::<E>(matrices, elements))
            };
            list.extend([of(Kind::Forward, 3), of(Kind::Backward, 5)]);
        }
    }

    /// Of one chunk of tokens.
    fn add_head(&self, list: &mut Vec<(Op, Work)>) {
        let shape = self.head_shape();
        let logits = shape.rows * shape.outputs;
        list.extend([
            ((Role::Head, Kind::Forward), work::linear::<E>(shape, 0)),
            ((Role::CrossEntropy, Kind::Whole), work::elementwise::<E>(2, logits)),
            ((Role::Head, Kind::Input), work::linear_input::<E>(shape, 0)),
            ((Role::Head, Kind::Weight), work::linear_weight::<E>(shape, Sums::Add)),
        ]);
    }

    /// The product of one chunk's logits.
    pub(super) fn head_shape(&self) -> Shape {
        let size = &self.size;
        let rows = size.chunk_tokens::<E>();
        Shape { rows, inputs: size.width, outputs: head_rows(size.vocabulary) }
    }

    fn add_update(&self, list: &mut Vec<(Op, Work)>) {
        let update = &self.update;
        let adamw = work::adamw(update.len(), update.working_bytes());
        list.push(((Role::GradientNorm, Kind::Whole), work::gradient_norm(update.len())));
        list.push(((Role::AdamW, Kind::Whole), adamw));
        list.push(((Role::UpdateNorm, Kind::Whole), work::update_norm(update.len())));
    }
}
