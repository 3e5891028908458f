//! The network's ops on the host: f32 and bf16 train, f64 checks gradients.

mod norm;

use device::{Allocator, View, ViewMut};

use super::linear::Linear;
use super::ops::{AttentionSaved, Chunk, EmbeddingGradients, EmbeddingTables, Epilogue, Ops};
use super::options::Recompute;
use super::scratch::SHARED;
use super::size::Size;
use crate::ops::matmul::Sums;
use crate::ops::norm::{NormBackward, NormSaved};
use crate::ops::rope::Direction;
use crate::ops::{self, Affine, AffineMut, Element, RowSums};
use crate::ops::{attention, cross_entropy, embedding, matmul, rope, swiglu};
use crate::{Batch, Error, ModelConfig};

/// Ops of the host, with their workspaces.
#[derive(Debug)]
pub(crate) struct HostOps<E: Element> {
    size: Size,
    /// Partial sums of norms over rows.
    row_sums: RowSums<E::Wide>,
    head: cross_entropy::Workspace<E>,
    attention: attention::Workspace<E>,
    /// Packing buffers of products.
    packs: matmul::Workspace<E>,
    /// RoPE's angles, in Llama.
    rope: Option<rope::Tables<E::Wide>>,
    /// Sum of the losses of the micro-batch so far.
    loss: f64,
}

impl<E: Element> HostOps<E> {
    fn tables(&self) -> &rope::Tables<E::Wide> {
        self.rope.as_ref().unwrap_or_else(|| unreachable!("this family has no RoPE"))
    }

    /// The head's matrix (V, C), without its padding.
    fn table<'a>(&self, padded: View<'a, E>) -> &'a [E] {
        &padded.host()[..self.size.vocabulary * self.size.width]
    }
}

impl<E: Element> Ops for HostOps<E> {
    type Element = E;

    const FUSES_CROSS_ENTROPY: bool = false;

    fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Result<Self, Error> {
        if size.recompute == Recompute::None {
            let expected = "selective or full with run.device = cpu";
            return Err(Error::invalid("run.recompute", size.recompute, expected));
        }
        let shared = allocator.for_purpose(SHARED);
        let logits = allocator.for_purpose("logits of one chunk");
        let threads = allocator.for_purpose("workspaces of the threads");
        let chunk = size.chunk_tokens::<E>();
        let products = size.products::<E>();
        Ok(Self {
            size: *size,
            row_sums: RowSums::new(&shared, size.rows, size.norm_sums()),
            head: cross_entropy::Workspace::new(&logits, chunk, size.vocabulary),
            attention: attention::Workspace::new(&threads, size.threads, &size.attention),
            packs: matmul::Workspace::for_products(&threads, size.threads, &products),
            rope: size.rope_tables(allocator, config),
            loss: 0.0,
        })
    }

    fn begin(&mut self, _batch: Batch<'_>) -> Result<(), Error> {
        self.loss = 0.0;
        Ok(())
    }

    fn clear<T: Element>(&mut self, values: ViewMut<'_, T>) -> Result<(), Error> {
        ops::clear(values.host());
        Ok(())
    }

    fn embedding(
        &mut self,
        y: ViewMut<'_, E>,
        tokens: &[u32],
        tables: EmbeddingTables<'_, E>,
    ) -> Result<(), Error> {
        let tables = (tables.tokens.host(), tables.positions.map(View::host));
        embedding::forward(y.host(), tokens, tables, self.size.sequence_and_width());
        Ok(())
    }

    fn embedding_backward(
        &mut self,
        tables: EmbeddingGradients<'_, E::Wide>,
        dx: View<'_, E>,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let dtokens = tables.tokens.host();
        let dpositions = tables.positions.map(ViewMut::host);
        let shape = self.size.sequence_and_width();
        embedding::backward(dtokens, dpositions, dx.host(), tokens, shape);
        Ok(())
    }

    fn norm(
        &mut self,
        y: ViewMut<'_, E>,
        stats: ViewMut<'_, E::Wide>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
    ) -> Result<(), Error> {
        self.size.norm.forward(y.host(), stats.host(), x.host(), parameters);
        Ok(())
    }

    fn recompute_norm(
        &mut self,
        y: ViewMut<'_, E>,
        stats: ViewMut<'_, E::Wide>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
    ) -> Result<(), Error> {
        let saved = NormSaved { input: x, stats: stats.into_view() };
        self.size.norm.recompute(y.host(), saved, parameters);
        Ok(())
    }

    fn norm_backward(
        &mut self,
        operands: NormBackward<'_, E>,
        gradients: AffineMut<'_, E::Wide>,
        sums: Sums,
    ) -> Result<(), Error> {
        self.size.norm.backward(operands, gradients, sums, &mut self.row_sums);
        Ok(())
    }

    fn linear(
        &mut self,
        linear: Linear,
        y: ViewMut<'_, E>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
        epilogue: Epilogue<'_, E>,
    ) -> Result<(), Error> {
        let epilogue = match epilogue {
            Epilogue::Store => matmul::Epilogue::Store,
            Epilogue::Residual(residual) => matmul::Epilogue::Residual(residual.host()),
            Epilogue::Gelu(value) => matmul::Epilogue::Gelu(value.host()),
        };
        let shape = self.size.linear(linear);
        let weight = parameters.weight.host();
        let bias = parameters.bias.map(View::host);
        let packs = &mut self.packs;
        matmul::forward(y.host(), x.host(), weight, (bias, epilogue), shape, packs);
        Ok(())
    }

    fn linear_input(
        &mut self,
        linear: Linear,
        dx: ViewMut<'_, E>,
        dy: View<'_, E>,
        weight: View<'_, E>,
        before_gelu: Option<ViewMut<'_, E>>,
    ) -> Result<(), Error> {
        let shape = self.size.linear(linear);
        let before = before_gelu.map(ViewMut::host);
        let packs = &mut self.packs;
        matmul::backward_input(dx.host(), dy.host(), weight.host(), before, shape, packs);
        Ok(())
    }

    fn linear_weight(
        &mut self,
        linear: Linear,
        dweight: ViewMut<'_, E::Wide>,
        dy: View<'_, E>,
        x: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        let shape = self.size.linear(linear);
        let packs = &mut self.packs;
        matmul::backward_weight(dweight.host(), dy.host(), x.host(), sums, shape, packs);
        Ok(())
    }

    fn linear_bias(
        &mut self,
        _linear: Linear,
        dbias: ViewMut<'_, E::Wide>,
        dy: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        matmul::backward_bias(dbias.host(), dy.host(), sums);
        Ok(())
    }

    fn rope(&mut self, qkv: ViewMut<'_, E>, direction: Direction) -> Result<(), Error> {
        let rotate = match direction {
            Direction::Forward => rope::forward,
            Direction::Backward => rope::backward,
        };
        rotate(qkv.host(), self.tables(), self.size.rope());
        Ok(())
    }

    fn attention(
        &mut self,
        output: ViewMut<'_, E>,
        log_sums: ViewMut<'_, E::Wide>,
        qkv: View<'_, E>,
    ) -> Result<(), Error> {
        let shape = self.size.attention;
        let workspace = &mut self.attention;
        attention::forward(output.host(), log_sums.host(), qkv.host(), shape, workspace);
        Ok(())
    }

    fn attention_backward(
        &mut self,
        dqkv: ViewMut<'_, E>,
        doutput: View<'_, E>,
        saved: AttentionSaved<'_, E>,
    ) -> Result<(), Error> {
        let AttentionSaved { qkv, output, log_sums } = saved;
        let forward = (output.host(), log_sums.host());
        let shape = self.size.attention;
        let workspace = &mut self.attention;
        attention::backward(dqkv.host(), doutput.host(), qkv.host(), forward, shape, workspace);
        Ok(())
    }

    fn swiglu(&mut self, hidden: ViewMut<'_, E>, gate_up: View<'_, E>) -> Result<(), Error> {
        swiglu::forward(hidden.host(), gate_up.host(), self.size.feed_forward);
        Ok(())
    }

    fn recompute_swiglu(
        &mut self,
        hidden: ViewMut<'_, E>,
        gate_up: ViewMut<'_, E>,
    ) -> Result<(), Error> {
        swiglu::recompute(hidden.host(), gate_up.host(), self.size.feed_forward);
        Ok(())
    }

    fn swiglu_backward(
        &mut self,
        gate_up: ViewMut<'_, E>,
        dhidden: View<'_, E>,
    ) -> Result<(), Error> {
        swiglu::backward(gate_up.host(), dhidden.host(), self.size.feed_forward);
        Ok(())
    }

    fn logits(
        &mut self,
        chunk: Chunk,
        hidden: View<'_, E>,
        table: View<'_, E>,
    ) -> Result<(), Error> {
        let table = self.table(table);
        let shape = self.size.head(chunk);
        let packs = &mut self.packs;
        cross_entropy::logits(&mut self.head, hidden.host(), table, shape, packs);
        Ok(())
    }

    fn cross_entropy(
        &mut self,
        chunk: Chunk,
        targets: &[u32],
        _scale: Option<E::Wide>,
    ) -> Result<(), Error> {
        self.loss += cross_entropy::loss(&mut self.head, targets, self.size.head(chunk));
        Ok(())
    }

    fn cross_entropy_backward(
        &mut self,
        chunk: Chunk,
        targets: &[u32],
        scale: E::Wide,
    ) -> Result<(), Error> {
        cross_entropy::to_gradient(&mut self.head, targets, scale, self.size.head(chunk));
        Ok(())
    }

    fn head_input(
        &mut self,
        chunk: Chunk,
        dhidden: ViewMut<'_, E>,
        table: View<'_, E>,
    ) -> Result<(), Error> {
        let table = self.table(table);
        let shape = self.size.head(chunk);
        let Self { head, packs, .. } = self;
        cross_entropy::hidden_gradient(dhidden.host(), table, shape, head, packs);
        Ok(())
    }

    fn head_weight(
        &mut self,
        chunk: Chunk,
        dtable: ViewMut<'_, E::Wide>,
        hidden: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        let shape = self.size.head(chunk);
        let dtable = &mut dtable.host()[..shape.vocabulary * shape.width];
        let Self { head, packs, .. } = self;
        cross_entropy::table_gradient(dtable, sums, hidden.host(), shape, head, packs);
        Ok(())
    }

    fn add_losses(&mut self, loss: ViewMut<'_, f64>) -> Result<(), Error> {
        loss.host()[0] += self.loss;
        Ok(())
    }

    fn read(&mut self, value: View<'_, f64>) -> Result<f64, Error> {
        Ok(value.host()[0])
    }
}
