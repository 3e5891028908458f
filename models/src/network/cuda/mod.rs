//! The network's ops on a CUDA device, by kernels and cuBLASLt, in f32 or bf16.
//!
//! Everything is started in the order of one stream, and nothing waits for it: losses stay on the
//! device. Biases, residuals and GELU are epilogues of products; RoPE, attention, norms and SwiGLU
//! are kernels of their own.
//!
//! `kernels.rs` compiles and plans, `workspace.rs` allocates, `tokens.rs` brings tokens to the
//! device.

mod kernels;
mod tokens;
mod workspace;

use device::{Allocator, Device, View, ViewMut};

use self::kernels::Kernels;
use self::tokens::Tokens;
use self::workspace::Workspace;
use super::linear::Linear;
use super::ops::{AttentionSaved, Chunk, EmbeddingGradients, EmbeddingTables, Epilogue, Ops};
use super::options::AttentionBackend;
use super::size::Size;
use crate::layout::head_rows;
use crate::ops::attention::cuda::{Forward, HEAD_WIDTH_MAX, wgmma_computes};
use crate::ops::cross_entropy::cuda::LogitsShape;
use crate::ops::kernels::CudaElement;
use crate::ops::matmul::Sums;
use crate::ops::matmul::cuda::{Blas, Extras};
use crate::ops::norm::NormBackward;
use crate::ops::rope::Direction;
use crate::ops::{Affine, AffineMut, Element};
use crate::tuning::ProductTuner;
use crate::{Batch, Error, ModelConfig};

/// Ops of a CUDA device, with their workspaces.
#[derive(Debug)]
pub(crate) struct CudaOps<E: CudaElement> {
    size: Size,
    tokens: Tokens,
    workspace: Workspace<E>,
    /// Address of what the last backward of a norm wrote: the workspace has its sums over rows.
    summed_address: u64,
    /// `None` in a plan, which has no device.
    kernels: Option<Kernels>,
}

/// The kernels, and what they work with.
struct Parts<'a, E: CudaElement> {
    size: &'a Size,
    tokens: &'a mut Tokens,
    workspace: &'a mut Workspace<E>,
    kernels: &'a mut Kernels,
}

impl<E: CudaElement> CudaOps<E> {
    fn parts(&mut self) -> Parts<'_, E> {
        let Self { size, tokens, workspace, kernels, .. } = self;
        let Some(kernels) = kernels else { panic!("an engine of a plan does not compute") };
        Parts { size, tokens, workspace, kernels }
    }
}

/// Kernels read rows 16 bytes at a time; those of attention read heads as they lie in their rows.
fn check<E: CudaElement>(config: &ModelConfig, size: &Size) -> Result<(), Error> {
    let widths = [("model.width", config.width), ("model.feed_forward", config.feed_forward)];
    for (key, width) in widths {
        if !width.is_multiple_of(8) {
            return Err(Error::invalid(key, width, "a multiple of 8 with run.device = cuda"));
        }
    }
    let head_width = size.attention.head_width;
    let backend = size.attention_backend;
    if backend == AttentionBackend::Wgmma && !wgmma_computes::<E>(head_width) {
        let expected = "flash, or precision.compute = bf16 with heads of 64 or 128";
        return Err(Error::invalid("run.attention", backend, expected));
    }
    if !head_width.is_multiple_of(2) || head_width > HEAD_WIDTH_MAX {
        let expected = format!("even and at most {HEAD_WIDTH_MAX} with run.device = cuda");
        return Err(Error::invalid("model.width / model.heads", head_width, expected));
    }
    Ok(())
}

impl<E: CudaElement> Ops for CudaOps<E> {
    type Element = E;

    const FUSES_CROSS_ENTROPY: bool = true;

    fn new(allocator: &Allocator, config: &ModelConfig, size: &Size) -> Result<Self, Error> {
        check::<E>(config, size)?;
        let workspace = Workspace::new(allocator, config, size);
        let tokens = Tokens::new(allocator, size.rows);
        let products = Blas::workspace(&allocator.for_purpose("workspace of products"));
        let kernels = match allocator.device() {
            Device::Cuda(device) if !allocator.is_counting() => {
                allocator.outcome()?;
                Some(Kernels::new::<E>(&device, size, products)?)
            }
            _ => None,
        };
        Ok(Self { size: *size, tokens, workspace, summed_address: 0, kernels })
    }

    fn fallbacks(&self) -> Vec<String> {
        let products = self.kernels.iter().flat_map(|kernels| &kernels.products);
        let fallbacks = Linear::ALL.into_iter().zip(products).filter_map(|(linear, products)| {
            Some(format!("{}: {}", linear.role().name(), products.fallback()?))
        });
        fallbacks.collect()
    }

    fn tuner(&mut self) -> Option<&mut dyn ProductTuner> {
        self.kernels.as_mut().map(|kernels| kernels as &mut dyn ProductTuner)
    }

    fn begin(&mut self, batch: Batch<'_>) -> Result<(), Error> {
        let Parts { tokens, kernels, .. } = self.parts();
        Ok(kernels.tokens.send(tokens, batch)?)
    }

    fn clear<T: Element>(&mut self, values: ViewMut<'_, T>) -> Result<(), Error> {
        Ok(self.parts().kernels.device.clear(values)?)
    }

    fn embedding(
        &mut self,
        y: ViewMut<'_, E>,
        _tokens: &[u32],
        tables: EmbeddingTables<'_, E>,
    ) -> Result<(), Error> {
        let Parts { size, tokens, kernels, .. } = self.parts();
        let EmbeddingTables { tokens: table, positions } = tables;
        let sequence_tokens = size.attention.tokens;
        Ok(kernels.embedding.forward(y, tokens.inputs(), table, positions, sequence_tokens)?)
    }

    fn embedding_backward(
        &mut self,
        tables: EmbeddingGradients<'_, f32>,
        dx: View<'_, E>,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let Parts { size, tokens: sent, kernels, .. } = self.parts();
        let groups = kernels.tokens.send_groups(sent, tokens)?;
        kernels.embedding.backward_tokens(tables.tokens, dx, groups, size.width)?;
        let Some(positions) = tables.positions else { return Ok(()) };
        // Positions beyond the sequences' have no gradient.
        let sequence_tokens = size.attention.tokens;
        Ok(kernels.embedding.backward_positions(positions, dx, sequence_tokens, size.width)?)
    }

    fn norm(
        &mut self,
        y: ViewMut<'_, E>,
        stats: ViewMut<'_, f32>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
    ) -> Result<(), Error> {
        let Kernels { norm, norm_shape, .. } = self.parts().kernels;
        Ok(norm.forward(y, stats, x, parameters, *norm_shape)?)
    }

    fn recompute_norm(
        &mut self,
        y: ViewMut<'_, E>,
        stats: ViewMut<'_, f32>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
    ) -> Result<(), Error> {
        // The kernel has the row in registers anyway, and its statistics for nothing.
        self.norm(y, stats, x, parameters)
    }

    fn norm_backward(
        &mut self,
        operands: NormBackward<'_, E>,
        gradients: AffineMut<'_, f32>,
        sums: Sums,
    ) -> Result<(), Error> {
        self.summed_address = operands.dx.cuda_address();
        let Parts { workspace, kernels, .. } = self.parts();
        let Kernels { norm, norm_shape, column_sums, .. } = kernels;
        norm.backward(operands, &mut workspace.partials, *norm_shape)?;
        let partials = workspace.partials.of_norm(norm_shape.rows, norm_shape.width);
        let adds = sums == Sums::Add;
        column_sums.add_up(gradients.weight, partials.weight.as_view(), adds)?;
        let Some(bias) = gradients.bias else { return Ok(()) };
        Ok(column_sums.add_up(bias, partials.bias.as_view(), adds)?)
    }

    fn linear(
        &mut self,
        linear: Linear,
        y: ViewMut<'_, E>,
        x: View<'_, E>,
        parameters: Affine<'_, E>,
        epilogue: Epilogue<'_, E>,
    ) -> Result<(), Error> {
        let Kernels { products, blas, .. } = self.parts().kernels;
        let Affine { weight, bias } = parameters;
        let extras = Extras { bias, ..Extras::default() };
        let products = &mut products[linear as usize];
        match epilogue {
            Epilogue::Store => products.forward(blas, y, x, weight, extras)?,
            Epilogue::Residual(residual) => {
                let extras = Extras { residual: Some(residual), ..extras };
                products.forward(blas, y, x, weight, extras)?;
            }
            Epilogue::Gelu(value) => {
                let extras = Extras { before_gelu: Some(y), ..extras };
                products.forward(blas, value, x, weight, extras)?;
            }
        }
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
        let Kernels { products, blas, gelu, .. } = self.parts().kernels;
        let products = &mut products[linear as usize];
        let Some(before_gelu) = before_gelu else {
            return Ok(products.input(blas, dx, dy, weight, None)?);
        };
        products.input(blas, dx, dy, weight, Some(before_gelu.as_view()))?;
        match gelu {
            Some(gelu) => Ok(gelu.in_place(before_gelu)?),
            None => Ok(()),
        }
    }

    fn linear_weight(
        &mut self,
        linear: Linear,
        dweight: ViewMut<'_, f32>,
        dy: View<'_, E>,
        x: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        let Kernels { products, blas, .. } = self.parts().kernels;
        Ok(products[linear as usize].weight(blas, dweight, dy, x, sums)?)
    }

    fn linear_bias(
        &mut self,
        linear: Linear,
        dbias: ViewMut<'_, f32>,
        dy: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        // The sums of any other layer take their place.
        let summed_address = std::mem::take(&mut self.summed_address);
        let Parts { size, workspace, kernels, .. } = self.parts();
        let Kernels { column_sums, .. } = kernels;
        let partials = &mut workspace.partials;
        let adds = sums == Sums::Add;
        if linear.writes_to_stream() {
            assert_eq!(dy.cuda_address(), summed_address, "what the norm's backward has summed");
            let partials = partials.of_norm(size.rows, size.width);
            return Ok(column_sums.add_up(dbias, partials.dx.as_view(), adds)?);
        }
        Ok(column_sums.of(dbias, dy, partials, adds)?)
    }

    fn rope(&mut self, qkv: ViewMut<'_, E>, direction: Direction) -> Result<(), Error> {
        let Parts { size, workspace, kernels, .. } = self.parts();
        let Some(tables) = &workspace.rope else { unreachable!("this family has no RoPE") };
        Ok(kernels.llama().rope.rotate(qkv, tables, size.rope(), direction)?)
    }

    fn attention(
        &mut self,
        output: ViewMut<'_, E>,
        log_sums: ViewMut<'_, f32>,
        qkv: View<'_, E>,
    ) -> Result<(), Error> {
        let Parts { size, kernels, .. } = self.parts();
        Ok(kernels.attention.forward(output, log_sums, qkv, size.attention)?)
    }

    fn attention_backward(
        &mut self,
        dqkv: ViewMut<'_, E>,
        doutput: View<'_, E>,
        saved: AttentionSaved<'_, E>,
    ) -> Result<(), Error> {
        let Parts { size, workspace, kernels, .. } = self.parts();
        let AttentionSaved { qkv, output, log_sums } = saved;
        let forward = Forward { output, log_sums };
        let delta = workspace.delta.view_mut();
        Ok(kernels.attention.backward(dqkv, delta, doutput, qkv, forward, size.attention)?)
    }

    fn swiglu(&mut self, hidden: ViewMut<'_, E>, gate_up: View<'_, E>) -> Result<(), Error> {
        let Parts { size, kernels, .. } = self.parts();
        Ok(kernels.llama().swiglu.forward(hidden, gate_up, size.feed_forward)?)
    }

    fn recompute_swiglu(
        &mut self,
        hidden: ViewMut<'_, E>,
        gate_up: ViewMut<'_, E>,
    ) -> Result<(), Error> {
        self.swiglu(hidden, gate_up.into_view())
    }

    fn swiglu_backward(
        &mut self,
        gate_up: ViewMut<'_, E>,
        dhidden: View<'_, E>,
    ) -> Result<(), Error> {
        let Parts { size, kernels, .. } = self.parts();
        Ok(kernels.llama().swiglu.backward(gate_up, dhidden, size.feed_forward)?)
    }

    fn logits(
        &mut self,
        chunk: Chunk,
        hidden: View<'_, E>,
        table: View<'_, E>,
    ) -> Result<(), Error> {
        let Parts { size, workspace, kernels, .. } = self.parts();
        let Kernels { blas, head, .. } = kernels;
        let logits = workspace.logits.view_mut().slice(0..logits_shape(size, chunk).elements());
        Ok(head.of(chunk.tokens).forward(blas, logits, hidden, table, Extras::default())?)
    }

    fn cross_entropy(
        &mut self,
        chunk: Chunk,
        _targets: &[u32],
        scale: Option<f32>,
    ) -> Result<(), Error> {
        let Parts { size, tokens, workspace, kernels } = self.parts();
        let shape = logits_shape(size, chunk);
        let targets = tokens.targets().slice(chunk.rows());
        let losses = workspace.losses.view_mut().slice(chunk.rows());
        let logits = workspace.logits.view_mut().slice(0..shape.elements());
        Ok(kernels.cross_entropy.run(losses, logits, targets, shape, scale)?)
    }

    fn head_input(
        &mut self,
        chunk: Chunk,
        dhidden: ViewMut<'_, E>,
        table: View<'_, E>,
    ) -> Result<(), Error> {
        let Parts { size, workspace, kernels, .. } = self.parts();
        let Kernels { blas, head, .. } = kernels;
        let dlogits = workspace.logits.view().slice(0..logits_shape(size, chunk).elements());
        Ok(head.of(chunk.tokens).input(blas, dhidden, dlogits, table, None)?)
    }

    fn head_weight(
        &mut self,
        chunk: Chunk,
        dtable: ViewMut<'_, f32>,
        hidden: View<'_, E>,
        sums: Sums,
    ) -> Result<(), Error> {
        let Parts { size, workspace, kernels, .. } = self.parts();
        let Kernels { blas, head, .. } = kernels;
        let dlogits = workspace.logits.view().slice(0..logits_shape(size, chunk).elements());
        Ok(head.of(chunk.tokens).weight(blas, dtable, dlogits, hidden, sums)?)
    }

    fn add_losses(&mut self, loss: ViewMut<'_, f64>) -> Result<(), Error> {
        let Parts { workspace, kernels, .. } = self.parts();
        Ok(kernels.cross_entropy.add_losses(loss, workspace.losses.view())?)
    }

    fn read(&mut self, value: View<'_, f64>) -> Result<f64, Error> {
        let mut host = [0.0];
        self.parts().kernels.device.read(value, &mut host)?;
        Ok(host[0])
    }
}

/// The logits of a chunk, with the padding of their rows.
fn logits_shape(size: &Size, chunk: Chunk) -> LogitsShape {
    let vocabulary = size.vocabulary;
    LogitsShape { tokens: chunk.tokens, vocabulary, stride: head_rows(vocabulary) }
}
