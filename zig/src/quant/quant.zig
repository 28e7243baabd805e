//! The quant room: rotation, RaBitQ codes, estimators and their bounds. docs/rabitq.md has the mathematics; names of
//! fields are its symbols. Kernels are compiled once per CPU level from `kernels/`, where scalar.zig is the definition.
const rotation = @import("rotation.zig");
pub const Rotation = rotation.Rotation;
pub const dim_code_of = rotation.dim_code_of;

const encode = @import("encode.zig");
pub const CodeParams = encode.CodeParams;
pub const Factors = encode.Factors;
pub const StoredFactors = encode.StoredFactors;
pub const Encoder = encode.Encoder;
pub const pack = encode.pack;
pub const unpack = encode.unpack;
pub const packed_bytes = encode.packed_bytes;

pub const decode = @import("encode.zig").decode;

const centers = @import("centers.zig");
pub const Centers = centers.Centers;

pub const blocks = @import("blocks.zig");
pub const Blocks = blocks.Blocks;

pub const Form = encode.Form;
pub const PositiveFloat = encode.PositiveFloat;
pub const RecordFactors = encode.RecordFactors;
pub const Codes = encode.Codes;
pub const Uppers = encode.Uppers;

pub const Query = @import("query.zig").Query;
pub const Product = @import("product.zig").Product;
pub const ProductQuery = @import("product.zig").ProductQuery;
pub const BuildCodes = @import("build_codes.zig").BuildCodes;
pub const ProductCodes = @import("build_codes.zig").ProductCodes;
pub const DirectionCodes = @import("build_codes.zig").DirectionCodes;

const dispatch = @import("dispatch.zig");
pub const Kernels = dispatch.Kernels;
pub const kernels = dispatch.kernels;
pub const Element = @import("kernels/abi.zig").Element;
pub const Candidate = @import("kernels/abi.zig").Candidate;
pub const Inserted = @import("kernels/abi.zig").Inserted;
pub const inserted_max = @import("kernels/abi.zig").inserted_max;
pub const list_padding = @import("kernels/abi.zig").list_padding;
pub const exact = @import("exact.zig");
/// The function of every kernel, for tests of kernels elsewhere.
pub const definition = @import("kernels/scalar.zig");
pub const EstimateTerms = @import("kernels/abi.zig").EstimateTerms;
pub const RowSum = @import("kernels/abi.zig").RowSum;

test {
    _ = exact;
    _ = rotation;
    _ = encode;
    _ = centers;
    _ = blocks;
    _ = @import("query.zig");
    _ = @import("product_test.zig");
    _ = @import("build_codes.zig");
    _ = @import("estimate_test.zig");
    _ = @import("kernels_test.zig");
}
