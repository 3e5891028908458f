//! A product of one shape: descriptors and algorithm, chosen once.
#![allow(unsafe_code)] // calls cuBLASLt with addresses

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::{
    cublasLtEpilogue_t, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtReductionScheme_t,
    cudaDataType,
};
use device::cuda::cublaslt::{CublasLt, HeuristicResult, Refusal, Status};
use device::cuda::{Cuda, Error, Libraries, Library};
use device::{Allocator, DeviceBuffer};

use super::descriptors::{Handle, Layout, Operation, Preference};
use super::tuning::Tuning;

/// Limits of algorithms, for what is kept of them: they change with this program.
pub(super) fn limits() -> String {
    format!("workspace {WORKSPACE_BYTES}, alignment {ALIGNMENT_BYTES}, sums in f32")
}

/// Workspace of algorithms: as much as NVIDIA advises for Hopper; other GPUs need less.
const WORKSPACE_BYTES: usize = 32 << 20;
/// The least alignment of any matrix: rows of a multiple of eight elements, from any of them on.
const ALIGNMENT_BYTES: u32 = 16;

/// The library, and the workspace that all products of a stream share.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: Handle,
    workspace: DeviceBuffer<u8>,
    device: Cuda,
}

/// D (m, n) = op(A) op(B), by columns, with k elements in each sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProductShape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// A is (k, m), and is transposed.
    pub(crate) a_is_transposed: bool,
    /// B is (n, k), and is transposed.
    pub(crate) b_is_transposed: bool,
    /// Elements from a column of A to the next.
    pub(crate) a_stride: usize,
    /// Elements from a column of B to the next.
    pub(crate) b_stride: usize,
    /// Elements from a column of D to the next.
    pub(crate) d_stride: usize,
    /// Elements of A and B.
    pub(crate) factors: cudaDataType,
    /// Elements of D.
    pub(crate) product: cudaDataType,
}

impl ProductShape {
    /// Size of all operands, each read or written once.
    fn moved_bytes(&self, epilogue: Epilogue, is_added_to: bool) -> u64 {
        let Self { m, n, k, .. } = *self;
        let bytes = |elements: usize, format| (elements * element_bytes(format)) as u64;
        let has_bias = matches!(epilogue, Epilogue::Bias | Epilogue::GeluBias);
        let has_gelu = matches!(epilogue, Epilogue::GeluBias | Epilogue::GeluGradient);
        let matrices = 1 + usize::from(is_added_to) + usize::from(has_gelu);
        let bias = if has_bias { m } else { 0 };
        bytes(m * k + k * n, self.factors) + bytes(matrices * m * n + bias, self.product)
    }
}

fn element_bytes(format: cudaDataType) -> usize {
    if format == cudaDataType::CUDA_R_32F { size_of::<f32>() } else { size_of::<half::bf16>() }
}

/// Operation on the sums before they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epilogue {
    /// Nothing.
    None,
    /// A bias (m) is added to each column.
    Bias,
    /// Bias, then GELU; the value before GELU is written too.
    GeluBias,
    /// Each sum is multiplied by the slope of GELU at a saved value.
    GeluGradient,
}

impl Epilogue {
    /// The epilogue without GELU or its slope.
    pub(super) fn without_gelu(self) -> Self {
        match self {
            Self::GeluBias => Self::Bias,
            Self::GeluGradient => Self::None,
            other => other,
        }
    }

    /// The next simpler epilogue; `None` where there is nothing to leave out.
    pub(super) fn simpler(self) -> Option<Self> {
        match self {
            Self::GeluBias => Some(Self::Bias),
            Self::GeluGradient | Self::Bias => Some(Self::None),
            Self::None => None,
        }
    }

    pub(super) fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::GeluBias)
    }

    pub(super) fn has_gelu(self) -> bool {
        matches!(self, Self::GeluBias | Self::GeluGradient)
    }
}

/// Addresses of a product.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operands {
    pub(crate) a: u64,
    pub(crate) b: u64,
    /// Added to the product where that is not 0; may be `d`.
    pub(crate) added: u64,
    pub(crate) d: u64,
    /// The bias (m).
    pub(crate) bias: u64,
    /// Input of GELU (m, n), laid out as D.
    pub(crate) before_gelu: u64,
}

impl Blas {
    /// Opens the library for a device.
    pub(crate) fn new(device: &Cuda, workspace: DeviceBuffer<u8>) -> Result<Self, Error> {
        device.bind()?;
        let handle = Handle::new(device.cublaslt()?).map_err(|refusal| Error::LibraryStartup {
            library: "cuBLASLt",
            text: refusal.to_string(),
        })?;
        Ok(Self { handle, workspace, device: device.clone() })
    }

    /// The device of all products.
    pub(crate) fn device(&self) -> &Cuda {
        &self.device
    }

    /// The workspace of all products.
    pub(crate) fn workspace(allocator: &Allocator) -> DeviceBuffer<u8> {
        allocator.zeros(WORKSPACE_BYTES)
    }
}

/// A product of one shape.
#[derive(Debug)]
pub(crate) struct Product {
    pub(super) shape: ProductShape,
    pub(super) epilogue: Epilogue,
    operation: Operation,
    a: Layout,
    b: Layout,
    d: Layout,
    pub(super) algorithm: cublasLtMatmulAlgo_t,
    pub(super) tuning: Tuning,
}

impl Product {
    /// Chooses the algorithm: the first that the library offers.
    ///
    /// # Errors
    /// [`Error::NoPlan`] if it offers none.
    pub(crate) fn new(blas: &Blas, shape: ProductShape, epilogue: Epilogue) -> Result<Self, Error> {
        let planned = Self::plan(blas, shape, epilogue);
        planned.map_err(|refusal| refused(Doing::Planning, &shape, epilogue, &refusal))
    }

    fn plan(blas: &Blas, shape: ProductShape, epilogue: Epilogue) -> Result<Self, Refusal> {
        let library = blas.handle.library;
        let operation = operation(library, &shape, epilogue)?;
        let ProductShape { m, n, k, factors, .. } = shape;
        let (a_rows, a_columns) = if shape.a_is_transposed { (k, m) } else { (m, k) };
        let (b_rows, b_columns) = if shape.b_is_transposed { (n, k) } else { (k, n) };
        let a = Layout::new(library, factors, a_rows, a_columns, shape.a_stride)?;
        let b = Layout::new(library, factors, b_rows, b_columns, shape.b_stride)?;
        let d = Layout::new(library, shape.product, m, n, shape.d_stride)?;
        let algorithm = cublasLtMatmulAlgo_t { data: [0; 8] };
        let tuning = Tuning::default();
        let mut product = Self { shape, epilogue, operation, a, b, d, algorithm, tuning };
        let [first, ..] = product.offered(blas, 1)?[..] else {
            return Err(library.refusal(Status::NOT_SUPPORTED));
        };
        product.algorithm = first;
        Ok(product)
    }

    /// At most so many of the algorithms that the library offers, best first by its own estimate.
    pub(super) fn offered(
        &mut self,
        blas: &Blas,
        algorithms_max: usize,
    ) -> Result<Vec<cublasLtMatmulAlgo_t>, Refusal> {
        let library = blas.handle.library;
        // Heuristics may depend on the alignment of the epilogue's pointers: it is the least.
        let placeholder = blas.workspace.view().cuda_address() + u64::from(ALIGNMENT_BYTES);
        // SAFETY: nothing is computed with them: `start` sets those of each product.
        unsafe { set_pointers(&mut self.operation, self.epilogue, placeholder, placeholder) }?;
        let preference = preference(library, blas.workspace.len())?;
        let mut found = vec![HeuristicResult::EMPTY; algorithms_max];
        let mut count: c_int = 0;
        // SAFETY: all descriptors are alive; it writes at most as many results as there is room
        // for, and one number.
        library.check(unsafe {
            (library.cublasLtMatmulAlgoGetHeuristic)(
                blas.handle.pointer,
                self.operation.pointer,
                self.a.pointer,
                self.b.pointer,
                self.d.pointer,
                self.d.pointer,
                preference.pointer,
                found.len() as c_int,
                found.as_mut_ptr(),
                &raw mut count,
            )
        })?;
        found.truncate(count.unsigned_abs() as usize);
        if let Some(first) = found.first() {
            library.check(first.state)?;
        }
        found.retain(|result| library.check(result.state).is_ok());
        Ok(found.into_iter().map(|result| result.algorithm).collect())
    }

    /// Returns whether the library computes this product by an algorithm, which may be of an
    /// earlier process.
    pub(super) fn accepts(&self, blas: &Blas, algorithm: &cublasLtMatmulAlgo_t) -> bool {
        let library = blas.handle.library;
        let mut result = HeuristicResult::EMPTY;
        // SAFETY: all descriptors are alive; it writes one result.
        let checked = library.check(unsafe {
            (library.cublasLtMatmulAlgoCheck)(
                blas.handle.pointer,
                self.operation.pointer,
                self.a.pointer,
                self.b.pointer,
                self.d.pointer,
                self.d.pointer,
                algorithm,
                &raw mut result,
            )
        });
        let fits = result.workspace_bytes <= blas.workspace.len();
        checked.and_then(|()| library.check(result.state)).is_ok() && fits
    }

    /// What the library computes of the epilogue.
    pub(super) fn epilogue(&self) -> Epilogue {
        self.epilogue
    }

    /// Starts the product.
    ///
    /// # Safety
    /// The addresses are those of matrices of this shape on the device, and of what the epilogue
    /// uses. Nothing that is written overlaps anything else, except that `added` may be `d`.
    pub(crate) unsafe fn run(&mut self, blas: &mut Blas, operands: Operands) -> Result<(), Error> {
        blas.device.bind()?;
        if self.tuning.is_due() {
            // SAFETY: as this function.
            unsafe { self.measure(blas, operands) }?;
        }
        blas.device.count_launch(self.shape.moved_bytes(self.epilogue, operands.added != 0));
        let algorithm = self.algorithm;
        // SAFETY: as this function.
        unsafe { self.start(blas, operands, &algorithm) }
            .map_err(|refusal| self.not_started(&refusal))
    }

    /// The error of a product that the library does not start.
    pub(super) fn not_started(&self, refusal: &Refusal) -> Error {
        refused(Doing::Starting, &self.shape, self.epilogue, refusal)
    }

    /// Starts the product by an algorithm.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub(super) unsafe fn start(
        &mut self,
        blas: &mut Blas,
        operands: Operands,
        algorithm: &cublasLtMatmulAlgo_t,
    ) -> Result<(), Refusal> {
        let Operands { a, b, added, d, bias, before_gelu } = operands;
        // SAFETY: as this function.
        unsafe { set_pointers(&mut self.operation, self.epilogue, bias, before_gelu) }?;
        let alpha = 1.0_f32;
        let beta = if added == 0 { 0.0_f32 } else { 1.0 };
        let added = if added == 0 { d } else { added };
        let pointer = |address: u64| address as *const c_void;
        let workspace = blas.workspace.view_mut().cuda_address();
        let library = blas.handle.library;
        // SAFETY: as this function; the factors are read before the call returns, and products of
        // one stream use the workspace one after the other.
        library.check(unsafe {
            (library.cublasLtMatmul)(
                blas.handle.pointer,
                self.operation.pointer,
                (&raw const alpha).cast(),
                pointer(a),
                self.a.pointer,
                pointer(b),
                self.b.pointer,
                (&raw const beta).cast(),
                pointer(added),
                self.d.pointer,
                d as *mut c_void,
                self.d.pointer,
                algorithm,
                workspace as *mut c_void,
                blas.workspace.len(),
                blas.device.compute().handle(),
            )
        })
    }
}

/// Sets the pointers that an epilogue has.
///
/// # Safety
/// They are valid for whatever is computed with the operation.
unsafe fn set_pointers(
    operation: &mut Operation,
    epilogue: Epilogue,
    bias: u64,
    before_gelu: u64,
) -> Result<(), Refusal> {
    // SAFETY: attributes that are pointers; the rest as this function.
    unsafe {
        if epilogue.has_bias() {
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
        }
        if epilogue.has_gelu() {
            let attribute = Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
            operation.set(attribute, before_gelu)?;
        }
    }
    Ok(())
}

/// Transposes and epilogue.
fn operation(
    library: &'static CublasLt,
    shape: &ProductShape,
    epilogue: Epilogue,
) -> Result<Operation, Refusal> {
    let operation = Operation::new(library)?;
    // `cublasOperation_t`: CUBLAS_OP_N and CUBLAS_OP_T.
    let transpose = |is_transposed| i32::from(is_transposed);
    let epilogue_of_library = match epilogue {
        Epilogue::None => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::GeluBias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        Epilogue::GeluGradient => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
    };
    // SAFETY: each value has the type of its attribute.
    unsafe {
        let a = transpose(shape.a_is_transposed);
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, a)?;
        let b = transpose(shape.b_is_transposed);
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, b)?;
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of_library)?;
        if epilogue.has_gelu() {
            let stride = shape.d_stride as i64;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride)?;
        }
    }
    Ok(operation)
}

/// Limits of an algorithm. Parts of a sum are added in f32: the library's other ways to add them
/// round each part to the type of the product.
fn preference(library: &'static CublasLt, workspace_bytes: usize) -> Result<Preference, Refusal> {
    let preference = Preference::new(library)?;
    let schemes = cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    // SAFETY: each value has the type of its attribute.
    unsafe {
        let attribute = PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        preference.set(attribute, workspace_bytes as u64)?;
        let attribute = PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        preference.set(attribute, schemes)?;
        for attribute in [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, ALIGNMENT_BYTES)?;
        }
    }
    Ok(preference)
}

/// A product as in `m = 8, n = 4, k = 16, CUDA_R_16BF with the epilogue Bias`.
pub(super) fn described(shape: &ProductShape, epilogue: Epilogue) -> String {
    let ProductShape { m, n, k, a_is_transposed, b_is_transposed, factors, product, .. } = shape;
    let operation = |is_transposed| if is_transposed { "T" } else { "N" };
    let [a, b] = [*a_is_transposed, *b_is_transposed].map(operation);
    format!(
        "a product of m = {m}, n = {n}, k = {k}, transposes {a}{b}, {factors:?} to {product:?}, \
         epilogue {epilogue:?}"
    )
}

fn no_plan(shape: &ProductShape, epilogue: Epilogue, reason: String) -> Error {
    let version = Libraries::of_process().cublaslt().map(Library::version_text);
    Error::NoPlan {
        library: format!("cuBLASLt {}", version.unwrap_or_default()),
        what: described(shape, epilogue),
        reason,
        hint: "install another version of cuBLASLt",
    }
}

/// Call of the library that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Planning,
    Starting,
}

/// The library offers no algorithm, or does not start the one that it offered; or the call failed.
fn refused(doing: Doing, shape: &ProductShape, epilogue: Epilogue, refusal: &Refusal) -> Error {
    let (verb, is_refusal) = match doing {
        Doing::Planning => ("planning", refusal.status.is_refused_plan()),
        Doing::Starting => ("starting", refusal.status.is_refused_start()),
    };
    if is_refusal {
        return no_plan(shape, epilogue, format!("{verb} it: {refusal}"));
    }
    let what = format!("{verb} {}", described(shape, epilogue));
    Error::Library { library: "cuBLASLt", what, text: refusal.to_string() }
}
