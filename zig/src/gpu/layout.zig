//! The structs that kernels take, by value, with the same layout on both machines. Addresses are those of device memory; where
//! kernels run on the host, for tests, they are addresses of its own memory. Nothing is imported but std: the compilation to PTX
//! has this file, too.
//!
//!   Index   one segment: written by its upload, read by kernels
//!   Batch   one launch: queries are written by the host, candidates and counters by the kernel
const std = @import("std");
const assert = std.debug.assert;

/// Lanes of a warp. One warp answers one query.
pub const lanes = 32;

/// No vertex.
pub const none = std.math.maxInt(u32);

/// Readable bytes behind the last code.
pub const code_padding = 64;

/// The longest candidate list of a kernel; longer ones stay on the CPU.
pub const list_size_max = 512;

/// Widths of codes that kernels read: `memory_bits`.
pub const bits_max = 6;

/// A segment in device memory, or a graph that is built, which has neither centers nor entry points. Every array but `links` and
/// `codes` is a copy of the one that the core has in memory.
pub const Index = extern struct {
    /// `quant.Codes.bytes`, `code_stride` bytes from one vertex to the next, then `code_padding`. Aligned to 16.
    codes: u64,
    /// u32[n]: `quant.Codes.factors`
    factors: u64,
    /// u8[n]: `quant.Codes.center_ids`
    center_ids: u64 = 0,
    /// u32[n × link_stride]: the links of every vertex, decoded, then `none`. Aligned to 4 × `link_stride`, at most 128.
    links: u64,
    /// u32[entry_starts[center_count]]: `Shared.entries`: vertices, those of one center side by side
    entries: u64 = 0,
    /// u32[center_count + 1]: `Shared.entry_starts`
    entry_starts: u64 = 0,
    /// f32[center_count]: `Shared.center_norms2`
    center_norms2: u64 = 0,
    n: u32,
    /// Dimensions of codes, a multiple of 16.
    dim: u32,
    /// Bits a dimension of codes.
    bits: u32,
    /// `code_stride_of(dim, bits)`
    code_stride: u32,
    /// `link_stride_of` of the longest list
    link_stride: u32,
    center_count: u32 = 0,
    /// The medoid.
    entry_vertex: u32,
    /// While a graph is built: distances are those of `quant.ProductCodes`.
    product: u32 = 0,
};

/// `quant.BuildCodes.PairFactors`: the type of `Index.factors` while a graph is built.
pub const PairFactors = extern struct {
    norm2: f32,
    f: f32,
    sum: i32,
};

/// One query, as `prepare.write` makes it from a `quant.Query`.
pub const Query = extern struct {
    /// An estimate is offset + term − f·(dot·scale − bias).
    scale: f32,
    bias: f32,
    /// Taken as absent, or `none`.
    excluded: u32 = none,
    unused: u32 = 0,
};

/// The outcome of one query.
pub const Counters = extern struct {
    /// Candidates of its list.
    len: u32,
    /// Vertices whose links were followed.
    expanded: u32,
    /// Distances estimated, those of entry points among them. A vertex that the visited set has forgotten counts again.
    estimates: u32,
    unused: u32 = 0,
};

/// One launch: `count` queries of one index.
pub const Batch = extern struct {
    /// Query[count]
    queries: u64,
    /// u32[count × plane_words_of(dim)]: the coarse query, in the order of dimensions that `prepare.write` gives it. Aligned to 16.
    planes: u64 = 0,
    /// f32[count × center_count]: `quant.Query.terms`
    terms: u64 = 0,
    /// i64[count × list_size], written by the kernel: `quant.Candidate`s, ascending, then `Candidate.none`; the lowest bit says
    /// that the links of a vertex were followed. As `search.List` has them, which takes them by a copy.
    candidates: u64 = 0,
    /// Counters[count], written by the kernel.
    counters: u64,
    count: u32,
    /// Candidates of a list, 1 to `list_size_max`.
    list_size: u32,
    /// The end of a walk by distance (`search.List.Stop`): the nearest `stop_followed` are followed, and others while they are no
    /// farther than `stop_share` times the `stop_k`-th nearest. `stop_followed` = `none`: the whole list is followed.
    stop_k: u32 = 1,
    stop_followed: u32 = none,
    stop_share: f32 = 1,
    /// Places of the visited set of one query: `visited_slots_of`, or another power of two from `visited_slots_min` on. Fewer cost
    /// estimates, never answers.
    visited_slots: u32,
    /// velo_insert: i64[count × followed_max], written by the kernel: candidates in the order that they were followed in, as many
    /// as `Counters.expanded`, none beyond `followed_max`.
    followed: u64 = 0,
    followed_max: u32 = 0,
    unused: u32 = 0,

    pub fn warp_bytes(self: *const Batch) u32 {
        return warp_bytes_of(self.list_size, self.visited_slots);
    }

    /// Warps of a block. Their shared memory is at most what every block may have.
    pub fn block_warps(self: *const Batch) u32 {
        return std.math.clamp((48 << 10) / self.warp_bytes(), 1, 4);
    }
};

/// Entry points that a search looks at, or all if there are fewer; and centers, at most (search/shared.zig).
pub const entries_looked = 256;
pub const centers_looked_max = 64;
/// Entry points that a search starts at.
pub const entries_best = 8;

/// Dimensions that one lane multiplies at a time: `bits` words of a code.
pub const group_dims = 32;

/// Bytes from one code to the next in device memory, where loads are aligned. An upload copies rows of `dim·bits/8` bytes to this
/// stride (offload/resident.zig); mostly the two are the same.
pub fn code_stride_of(dim: u32, bits: u32) u32 {
    return std.mem.alignForward(u32, dim / 8 * bits, 16);
}

/// Words of a query's plane.
pub fn plane_words_of(dim: u32) u32 {
    return std.mem.alignForward(u32, dim, 64) / 4;
}

/// Places of a list of links in device memory: a warp reads those of one vertex, or of a few, at once.
pub fn link_stride_of(longest: u32) u32 {
    assert(longest <= 256);
    if (longest > lanes) return std.mem.alignForward(u32, longest, lanes);
    return std.math.ceilPowerOfTwoAssert(u32, @max(longest, 4));
}

/// Least places of a visited set: one for every center.
pub const visited_slots_min = 256;

/// A search meets some twelve vertices for each of its list.
pub fn visited_slots_of(list_size: u32) u32 {
    return std.math.ceilPowerOfTwoAssert(u32, std.math.clamp(list_size * 12, visited_slots_min, 2048));
}

/// Shared memory of one warp: the list, newcomers to it, ids, the visited set. A launch of blocks of `w` warps
/// has `w` times as much dynamic shared memory.
pub fn warp_bytes_of(list_size: u32, visited_slots: u32) u32 {
    return 8 * std.mem.alignForward(u32, list_size, lanes) + lanes * (8 + 4) + 4 * visited_slots;
}

comptime {
    // Kernels and their callers agree on this to the byte.
    assert(@sizeOf(Index) == 7 * 8 + 8 * 4);
    assert(@sizeOf(Query) == 16 and @sizeOf(Counters) == 16);
    assert(@sizeOf(Batch) == 6 * 8 + 8 * 4 and @sizeOf(PairFactors) == 12);
    // A block of one warp fits into the shared memory of any card.
    assert(warp_bytes_of(list_size_max, 2048) <= 48 << 10);
}

test "strides hold codes and lists" {
    for ([_][3]u32{ .{ 16, 1, 16 }, .{ 128, 4, 64 }, .{ 112, 3, 48 }, .{ 48, 6, 48 } }) |case| {
        try std.testing.expectEqual(case[2], code_stride_of(case[0], case[1]));
    }
    for ([_][2]u32{ .{ 0, 4 }, .{ 5, 8 }, .{ 16, 16 }, .{ 17, 32 }, .{ 33, 64 }, .{ 255, 256 } }) |case| {
        try std.testing.expectEqual(case[1], link_stride_of(case[0]));
    }
}
