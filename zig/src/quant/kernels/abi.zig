//! The contract between the kernel objects and the rest of the room: the table of functions and the structs they take.
//! No imports from outside this folder but std: every kernel object compiles it for its own CPU level.
const std = @import("std");

/// Conventions of every kernel:
///  - `dim` is a multiple of 16; packed codes are those of encode.zig: dimension i in bits [i·bits, (i+1)·bits),
///    little-endian; bits 1 to 8.
///  - queries (i8 planes) are aligned to 64 bytes and zero-padded to a multiple of 64.
///  - up to 64 bytes past the end of a code may be read, never written.
///  - ids come unsorted, may repeat, and count may be 0.
pub const Kernels = struct {
    /// XXH3-64, seed 0.
    checksum: *const fn (bytes: [*]const u8, len: usize) callconv(.c) u64,

    /// The hot one: squared distances to vectors whose codes, factors and centers are in memory.
    /// out[j] = offset + query_terms[centers[id]] − f·(dot·scale − bias), dot = Σ query[i]·code_i of the code of id = ids[j].
    /// The first `asked` of them were asked for before: their loads need not be started here.
    /// offset and f are the lower and the upper half of a factor: 8 bits of exponent and 8 of mantissa of a float.
    estimate_gather: *const fn (query: [*]align(64) const i8, dim: u32, bits: u32, codes: [*]const u8, factors: [*]const u32, ids: [*]const u32, count: u32, asked: u32, terms: *const EstimateTerms, out: [*]f32) callconv(.c) void,

    /// The same for all rows of `count` blocks (`block_rows`), which lie one after the other as their factors and centers do.
    /// near[b] has a bit for each row of block b whose estimate is at most `reach`.
    estimate_blocks: *const fn (query: [*]align(64) const i8, dim: u32, cell: u32, blocks: [*]align(64) const u8, factors: [*]const u32, count: u32, reach: f32, terms: *const EstimateTerms, out: [*]f32, near: [*]u32) callconv(.c) void,

    /// Puts candidates into an ascending list of at most `limit`: whichever is nearer than `reach`, and than the last of a full list. Of
    /// vertices and distances, `count` at most `inserted_max`, as many as that are readable. Behind `limit` the list has
    /// `list_padding` places more, and what stands behind its end is `Candidate.none`, or was pushed out of it.
    insert_nearest: *const fn (items: [*]Candidate, len: u32, limit: u32, reach: f32, vertices: [*]const u32, distances: [*]const f32, count: u32, out: *Inserted) callconv(.c) void,

    /// Dot products of entries with both planes of a fine query.
    dot_gather2: *const fn (hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, bits: u32, base: [*]const u8, stride: usize, ids: [*]const u32, count: u32, out_hi: [*]i32, out_lo: [*]i32) callconv(.c) void,

    /// The same for `count` codes that lie one after the other, `stride` bytes apart.
    dot_rows: *const fn (hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, bits: u32, rows: [*]const u8, stride: usize, count: u32, out_hi: [*]i32, out_lo: [*]i32) callconv(.c) void,

    /// Squared distances to records that lie one after the other, from the dot products of their codes.
    /// inner = 256·upper_hi + upper_lo, shifted up by record_bits and more by 256·lower_hi + lower_lo;
    /// out[j] = offset + query_terms[center] − f·ratio·ratio_step·(2·inner − bias)·step, with f the upper half of a factor.
    record_distances: *const fn (dots: *const RecordDots, records: *const Records, terms: *const RecordTerms, count: u32, out: [*]f32) callconv(.c) void,

    /// Code against codes, 8 bits each (graph construction).
    /// out[j] = max(0, norm2_j + terms.norm2 − terms.f·f_j·(2·dot + sum_j + terms.bias)).
    pair_gather: *const fn (plane: [*]align(64) const i8, dim: u32, codes: [*]const u8, factors: [*]const PairFactors, ids: [*]const u32, count: u32, terms: *const PairTerms, out: [*]f32) callconv(.c) void,

    /// The fit of the grid of step 1/t to a vector of magnitudes, for the whole code and its upper half at once.
    /// level_i = min(floor(magnitude_i·t), level_max); x_i = level_i + 0.5, y_i = floor(level_i·upper_scale) + 0.5.
    code_scores: *const fn (magnitudes: [*]const f32, dim: u32, t: f32, level_max: f32, upper_scale: f32, out: *CodeScores) callconv(.c) void,

    /// Writes the code of o on the grid of step 1/t: u_i = half + level_i, or half − 1 − level_i where o_i < 0, with
    /// half = level_max + 1; and its sums, in double precision.
    code_finish: *const fn (o: [*]const f32, dim: u32, t: f32, level_max: f32, upper_scale: f32, code: [*]u16, out: *CodeSums) callconv(.c) void,

    /// Rounds a query (half away from zero) to 8 and to 16 bits; |x_i·coarse_scale| <= 127, |x_i·fine_scale| <= 127·256.
    /// x_i·fine_scale rounded = 256·hi_i + lo_i.
    quantise_query: *const fn (x: [*]const f32, dim: u32, coarse_scale: f32, fine_scale: f32, coarse: [*]i8, hi: [*]i8, lo: [*]i8, out: *QuerySums) callconv(.c) void,

    /// x_i = x_i·y_i.
    multiply: *const fn (x: [*]f32, y: [*]const f32, len: u32) callconv(.c) void,

    /// Fast Walsh-Hadamard transform without scaling, in place; len is a power of two, at least 16.
    hadamard: *const fn (x: [*]f32, len: u32) callconv(.c) void,

    /// The largest |x_i|, 0 of none. Not for NaN.
    max_magnitude: *const fn (x: [*]const f32, len: u32) callconv(.c) f32,

    /// Σ x_i².
    sum_squares: *const fn (x: [*]const f32, len: u32) callconv(.c) f32,

    /// Of `count` rows of `len` elements that lie one after the other, at any address; `len` and `count` as they are.
    /// sums[j] = Σ (q_i − x_i)², or Σ q_i·x_i; norms2[j] = Σ x_i² where `kind` is .product_and_norm2, untouched else.
    row_sums: *const fn (query: [*]const f32, len: u32, element: Element, kind: RowSum, rows: [*]const u8, count: u32, sums: [*]f32, norms2: [*]f32) callconv(.c) void,

    /// Σ x_i·y_i.
    dot: *const fn (x: [*]const f32, y: [*]const f32, len: u32) callconv(.c) f32,

    /// out[i·y_count + j] = Σ x_i·y_j of rows of `len` elements, in any order of sums.
    products: *const fn (x: [*]const f64, x_count: u32, y: [*]const f64, y_count: u32, len: u32, out: [*]f64) callconv(.c) void,

    /// Of one part of a product code, whose centroids are columns: value i of centroid c is columns[i·centroids + c], finite.
    /// `centroids` is a power of two, 16 to centroids_max. out[c] = Σ (y_i − c_i)² or Σ y_i·c_i over `width` values, added in order in f32, y_i = product_scaled(x_i, scale).
    product_table: *const fn (columns: [*]const f16, centroids: u32, width: u32, x: [*]const f32, scale: f32, kind: RowSum, out: [*]f32) callconv(.c) void,

    /// The first of the centroids with the smallest Σ (y_i − c_i)², of `count` rows that are `stride` values apart.
    product_nearest: *const fn (columns: [*]const f16, centroids: u32, width: u32, rows: [*]const f32, stride: usize, count: u32, scale: f32, out: [*]u8) callconv(.c) void,

    /// Sums of table entries: out[j] = Σ table[centroids_max·m + codes[j·parts + m]] over the parts m. Reads no byte outside codes and table.
    product_scan: *const fn (table: [*]const u16, parts: u32, codes: [*]const u8, count: u32, out: [*]u32) callconv(.c) void,
};

/// Of each part of a product code: a byte names one.
pub const centroids_max = 256;

/// Rows whose codes lie side by side: the same few dimensions of all of them, then the next ones. So each lane of a register
/// adds up a row of its own, and no sum is carried from lane to lane.
///
/// A value takes a cell of 1, 2, 4 or 8 bits. A word of 32 bits holds the cells of 32 / cell dimensions of a row; word w of row r
/// is the (w·block_rows + r)-th of a block. Dimension i of a word is in its byte i % 4, from bit (i / 4)·cell on. What lies behind
/// the last dimension is 0.
pub const block_rows = 32;

/// Words of a row in a block.
pub fn block_words(dim: u32, cell: u32) usize {
    return (@as(usize, dim) * cell + 31) / 32;
}

/// A vertex and its distance as one number, so that the order of numbers is that of candidates: by distance, of equal ones
/// by vertex. The lowest bit says that its links were followed, which moves it nowhere.
pub const Candidate = extern struct {
    key: i64,

    pub const none: Candidate = .{ .key = std.math.maxInt(i64) };

    pub inline fn of(number: u32, at: f32) Candidate {
        return .{ .key = @as(i64, ordered(@bitCast(at + 0.0))) << 32 | @as(i64, number) << 1 }; // one zero only
    }

    /// Bits of floats as numbers of the same order, and back.
    inline fn ordered(bits: i32) i32 {
        return bits ^ ((bits >> 31) & std.math.maxInt(i32));
    }

    pub inline fn distance(self: Candidate) f32 {
        return @bitCast(ordered(@truncate(self.key >> 32)));
    }

    /// A number of the same order as distances.
    pub inline fn rank(self: Candidate) i32 {
        return @truncate(self.key >> 32);
    }

    pub inline fn vertex(self: Candidate) u32 {
        return @as(u32, @truncate(@as(u64, @bitCast(self.key)))) >> 1;
    }

    pub inline fn expanded(self: Candidate) bool {
        return self.key & 1 != 0;
    }
};

/// Places of a list that are loaded and stored together, at most.
pub const list_padding = 8;

/// So many candidates enter a list at once.
pub const inserted_max = 8;

pub const Inserted = extern struct {
    /// The nearest newcomer; `none` where there is none.
    nearest: Candidate,
    /// Of the list.
    len: u32,
    /// A bit for each that is nearer than the bound was: only these may have entered.
    entered: u32,
};

/// Elements of rows as they are given.
pub const Element = enum(u32) { f32, f16, u8, i8 };

pub const RowSum = enum(u32) { difference2, product, product_and_norm2 };

/// Operands of an estimate beside the dot product: the center of every vector, and the query's terms, one per
/// center.
pub const EstimateTerms = extern struct {
    centers: [*]const u8,
    query_terms: *const [centers_max]f32,
    scale: f32,
    bias: f32,
};

/// Records whose dot products are at hand, at most.
pub const records_together = 64;

pub const RecordDots = extern struct {
    upper_hi: [records_together]i32,
    upper_lo: [records_together]i32,
    /// Not looked at where record_bits is 0.
    lower_hi: [records_together]i32,
    lower_lo: [records_together]i32,
};

/// Of records one after the other: what memory holds of their vertices, and what their page does.
pub const Records = extern struct {
    factors: [*]const u32,
    centers: [*]const u8,
    offsets: [*]align(1) const f32,
    ratios: [*]align(1) const u16,
};

pub const RecordTerms = extern struct {
    query_terms: *const [centers_max]f32,
    bias: i64,
    step: f32,
    ratio_step: f32,
    record_bits: u32,
};

/// Centers that vectors may be coded around: a byte names one.
pub const centers_max = 256;

/// One vector's factors for construction.
pub const PairFactors = extern struct {
    /// |o|²
    norm2: f32,
    /// |o|²/⟨x̄,o⟩
    f: f32,
    /// Σ u_i
    sum: i32,
};

pub const PairTerms = extern struct {
    norm2: f32,
    f: f32,
    bias: i32,
};

pub const CodeScores = extern struct {
    /// Σ x_i·magnitude_i, Σ x_i²
    dot_full: f32,
    sum2_full: f32,
    /// Σ y_i·magnitude_i, Σ y_i²
    dot_upper: f32,
    sum2_upper: f32,
};

pub const CodeSums = extern struct {
    /// Σ o_i²
    norm2: f64,
    /// ⟨x̄,o⟩, |x̄|² of the whole code, then of its upper bits.
    dot_full: f64,
    sum2_full: f64,
    dot_upper: f64,
    sum2_upper: f64,
};

pub const QuerySums = extern struct {
    /// Σ coarse_i, Σ (256·hi_i + lo_i)
    coarse: i32,
    fine: i32,
    /// Σ (x_i·coarse_scale − coarse_i)²
    coarse_error2: f32,
};
