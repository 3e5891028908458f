//! Both norms: forward, and backward with the sums over rows.

use device::Allocator;
use device::cuda::{Cuda, Error};
use half::bf16;

use super::device::{Bound, Memory, Numbers};
use crate::ops::kernels::CudaElement;
use crate::ops::norm::{NormBackward, NormKernels, NormSaved, NormShape};
use crate::ops::row_sums::RowSums;
use crate::ops::row_sums::cuda::{ColumnSums, NormPartials, Partials};
use crate::ops::{Affine, layer_norm, rms_norm};

/// N and C: one pack, rows that fill no block, several parts, and more columns than one pass of
/// backward has.
const SHAPES: [(usize, usize); 6] = [(1, 8), (5, 24), (33, 120), (70, 776), (9, 4104), (3, 8200)];
/// Epsilon of RMSNorm: large enough to matter.
const EPSILON: f64 = 1e-2;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Norm {
    Layer,
    RootMeanSquare,
}

impl Norm {
    fn kernels<E: CudaElement>(self, device: &Cuda) -> Result<NormKernels, Error> {
        match self {
            Self::Layer => NormKernels::layer_norm::<E>(device),
            Self::RootMeanSquare => NormKernels::rms_norm::<E>(device, EPSILON),
        }
    }

    fn stats_per_row(self) -> usize {
        match self {
            Self::Layer => 2,
            Self::RootMeanSquare => 1,
        }
    }
}

/// Everything a norm reads, and what it is added to.
struct Case<E> {
    norm: Norm,
    shape: NormShape,
    x: Numbers<E>,
    dy: Numbers<E>,
    dx_before: Numbers<E>,
    weight: Numbers<E>,
    bias: Numbers<E>,
}

/// Output and statistics.
struct Forward<E, S> {
    y: Vec<E>,
    stats: Vec<S>,
}

/// The gradients of x, of the weight and in LayerNorm of the bias.
struct Gradients<E, S> {
    dx: Vec<E>,
    dweight: Vec<S>,
    dbias: Vec<S>,
    /// In LayerNorm, the sums of dx over rows.
    dx_sums: Vec<S>,
}

impl<E: CudaElement> Case<E> {
    fn new(norm: Norm, (rows, width): (usize, usize)) -> Self {
        let matrix = |seed| Numbers::uniform(rows * width, seed, 2.0);
        let vector = |seed| Numbers::uniform(width, seed, 1.0);
        let x = Numbers::<E>::uniform(rows * width, 1, 2.0).exact;
        // In LayerNorm a mean that is larger than the deviation from it.
        let mean = if norm == Norm::Layer { 3.0 } else { 0.0 };
        Self {
            norm,
            shape: NormShape { rows, width },
            x: Numbers::rounded(&x.iter().map(|x| x + mean).collect::<Vec<_>>()),
            dy: matrix(2),
            dx_before: matrix(3),
            weight: vector(4),
            bias: vector(5),
        }
    }

    fn exact_forward(&self) -> Forward<f64, f64> {
        let mut y = vec![0.0; self.x.exact.len()];
        let mut stats = vec![0.0; self.norm.stats_per_row() * self.shape.rows];
        let weight = &self.weight.exact;
        match self.norm {
            Norm::Layer => {
                let parameters = layer_norm::Parameters { weight, bias: &self.bias.exact };
                let stats = stats.as_chunks_mut().0;
                layer_norm::forward(&mut y, stats, &self.x.exact, parameters);
            }
            Norm::RootMeanSquare => {
                rms_norm::forward(&mut y, &mut stats, &self.x.exact, weight, EPSILON);
            }
        }
        Forward { y, stats }
    }

    /// The gradient of x is added to what it was before, or not.
    fn exact_backward(&self, stats: &[f64], accumulate: bool) -> Gradients<f64, f64> {
        let NormShape { rows, width } = self.shape;
        let mut dx = self.dx_before.exact.clone();
        if !accumulate {
            dx.fill(0.0);
        }
        let mut dweight = vec![0.0; width];
        let mut dbias = vec![0.0; width];
        let mut sums = RowSums::new(&Allocator::host(), rows, 2 * width);
        let Self { x, dy, weight, .. } = self;
        match self.norm {
            Norm::Layer => {
                let gradients = layer_norm::Gradients { weight: &mut dweight, bias: &mut dbias };
                let saved = (stats.as_chunks().0, &*x.exact);
                let weight = &weight.exact;
                layer_norm::backward(&mut dx, gradients, &dy.exact, saved, weight, &mut sums);
            }
            Norm::RootMeanSquare => {
                let saved = (stats, &*x.exact);
                let weight = &weight.exact;
                rms_norm::backward(&mut dx, &mut dweight, &dy.exact, saved, weight, &mut sums);
                dbias.clear();
            }
        }
        // Those of what was computed are compared, which is rounded.
        Gradients { dx, dweight, dbias, dx_sums: Vec::new() }
    }

    fn forward(&self, memory: &Memory) -> Forward<E, f32> {
        let kernels = self.norm.kernels::<E>(memory.device()).unwrap();
        let x = memory.upload(&self.x.elements);
        let weight = memory.upload(&self.weight.elements);
        let bias = memory.upload(&self.bias.elements);
        let bias = (self.norm == Norm::Layer).then(|| bias.view());
        let parameters = Affine { weight: weight.view(), bias };
        let mut y = memory.unwritten::<E>(x.len());
        let mut stats = memory.unwritten(self.norm.stats_per_row() * self.shape.rows);
        let view = stats.view_mut();
        kernels.forward(y.view_mut(), view, x.view(), parameters, self.shape).unwrap();
        Forward { y: memory.download(&y), stats: memory.download(&stats) }
    }

    fn backward(&self, memory: &Memory, stats: &[f64], accumulate: bool) -> Gradients<E, f32> {
        let kernels = self.norm.kernels::<E>(memory.device()).unwrap();
        let column_sums = ColumnSums::new::<E>(memory.device()).unwrap();
        let stats: Vec<f32> = stats.iter().map(|&value| value as f32).collect();
        let stats = memory.upload(&stats);
        let [x, dy, weight] =
            [&self.x, &self.dy, &self.weight].map(|numbers| memory.upload(&numbers.elements));
        let mut dx = memory.before(&self.dx_before.elements, accumulate);
        let NormShape { rows, width } = self.shape;
        let mut partials = Partials::new(memory.allocator(), rows, width, width);
        let operands = NormBackward {
            dx: dx.view_mut(),
            accumulate,
            dy: dy.view(),
            saved: NormSaved { input: x.view(), stats: stats.view() },
            weight: weight.view(),
        };
        kernels.backward(operands, &mut partials, self.shape).unwrap();
        let NormPartials { weight, bias, dx: dx_parts } = partials.of_norm(rows, width);
        let [dweight, mut dbias, mut dx_sums] = [weight, bias, dx_parts].map(|part| {
            let mut sums = memory.unwritten(width);
            column_sums.add_up(sums.view_mut(), part.as_view(), false).unwrap();
            memory.download(&sums)
        });
        if self.norm == Norm::RootMeanSquare {
            dbias.clear();
            dx_sums.clear();
        }
        Gradients { dx: memory.download(&dx), dweight, dbias, dx_sums }
    }
}

fn forward_agrees<E: CudaElement>(norm: Norm) {
    const BOUND: Bound = Bound::rounded_once(3e-6);
    const STATS: Bound = Bound::wide(1e-6);
    let memory = Memory::new();
    for shape in SHAPES {
        let case = Case::<E>::new(norm, shape);
        let exact = case.exact_forward();
        let found = case.forward(&memory);
        BOUND.check(&format!("{shape:?}"), &found.y, &exact.y);
        STATS.check_wide::<E>(&format!("statistics of {shape:?}"), &found.stats, &exact.stats);
    }
}

fn column_sums_of<E: CudaElement>(matrix: &[E], width: usize) -> Vec<f64> {
    let rows = matrix.chunks(width);
    rows.fold(vec![0.0; width], |sums, row| {
        sums.iter().zip(row).map(|(sum, element)| sum + f64::from(element.widen())).collect()
    })
}

fn backward_agrees<E: CudaElement>(norm: Norm) {
    const BOUND: Bound = Bound::rounded_once(5e-6);
    const SUMS: Bound = Bound::wide(5e-6);
    let memory = Memory::new();
    for shape in SHAPES {
        let case = Case::<E>::new(norm, shape);
        let stats = case.exact_forward().stats;
        for accumulate in [true, false] {
            let what = |gradient| format!("{gradient} of {shape:?}, added: {accumulate}");
            let exact = case.exact_backward(&stats, accumulate);
            let found = case.backward(&memory, &stats, accumulate);
            BOUND.check(&what("dx"), &found.dx, &exact.dx);
            SUMS.check_wide::<E>(&what("dweight"), &found.dweight, &exact.dweight);
            SUMS.check_wide::<E>(&what("dbias"), &found.dbias, &exact.dbias);
            if norm == Norm::Layer {
                let sums = column_sums_of(&found.dx, shape.1);
                SUMS.check_wide::<E>(&what("sums of dx"), &found.dx_sums, &sums);
            }
        }
    }
}

#[test]
fn layer_norm_forward() {
    forward_agrees::<f32>(Norm::Layer);
    forward_agrees::<bf16>(Norm::Layer);
}

#[test]
fn layer_norm_backward() {
    backward_agrees::<f32>(Norm::Layer);
    backward_agrees::<bf16>(Norm::Layer);
}

#[test]
fn rms_norm_forward() {
    forward_agrees::<f32>(Norm::RootMeanSquare);
    forward_agrees::<bf16>(Norm::RootMeanSquare);
}

#[test]
fn rms_norm_backward() {
    backward_agrees::<f32>(Norm::RootMeanSquare);
    backward_agrees::<bf16>(Norm::RootMeanSquare);
}
