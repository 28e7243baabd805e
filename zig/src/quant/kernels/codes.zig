//! Dot products of packed codes with signed 8-bit queries, in registers. All widths and levels share one shape: load
//! `step` dimensions of a code as bytes (`unpack`), multiply them with as many bytes of the query and add up in 32 bits
//! (`multiply_add`); four codes at a time, so that one transposed sum serves all four.
const std = @import("std");
const builtin = @import("builtin");
const abi = @import("abi.zig");
const scalar = @import("scalar.zig");

const x86 = builtin.cpu.arch == .x86_64;
const vnni = x86 and builtin.cpu.has(.x86, .avx512vnni) and builtin.cpu.has(.x86, .avx512vbmi);
const avx2 = x86 and builtin.cpu.has(.x86, .avx2);
const dotprod = builtin.cpu.arch == .aarch64 and builtin.cpu.has(.aarch64, .dotprod);

/// Dimensions a register takes at once.
const step = if (vnni) 64 else if (avx2) 32 else 16;
const Bytes = @Vector(step, u8);
const Signed = @Vector(step, i8);
const lanes = step / 4;
const Sums = @Vector(lanes, i32);
const Words = @Vector(step / 8, u64);

/// Codes whose loads are started ahead of use: enough to hide memory, few enough for the processor's miss queue.
const ahead = 16;

// ---- unpacking ----

inline fn load(comptime T: type, p: [*]const u8) T {
    return @as(*align(1) const T, @ptrCast(p)).*;
}

/// `step` dimensions of a code, a byte each.
inline fn unpack(comptime bits: u32, p: [*]const u8) Bytes {
    if (bits == 8) return load(Bytes, p);
    if (bits == 1) {
        const set: @Vector(step, bool) = @bitCast(load(std.meta.Int(.unsigned, step), p));
        return @select(u8, set, @as(Bytes, @splat(1)), @as(Bytes, @splat(0)));
    }
    if (bits == 4) {
        const pairs: @Vector(step / 2, u16) = load(@Vector(step / 2, u8), p);
        return @bitCast((pairs | pairs << @splat(4)) & @as(@Vector(step / 2, u16), @splat(0x0f0f)));
    }
    const low: Bytes = @splat((1 << bits) - 1);
    if (vnni) return multishift(comptime multishift_control(bits), groups(bits, p)) & low;

    // Halve three times: 8 dimensions in a word, 4 in each half, 2 in each quarter, 1 in each byte; what lies above is
    // cut off at the end.
    var x: Words = @bitCast(groups(bits, p));
    x = upper_parts(u32, x, 32 - 4 * bits);
    x = upper_parts(u16, x, 16 - 2 * bits);
    x = upper_parts(u8, x, 8 - bits);
    return @as(Bytes, @bitCast(x)) & low;
}

/// Every second `Part` of x taken from x << shift.
inline fn upper_parts(comptime Part: type, x: Words, comptime shift: u6) Words {
    const count = step * 8 / @bitSizeOf(Part);
    const V = @Vector(count, Part);
    const even = comptime blk: {
        var mask: [count]bool = undefined;
        for (&mask, 0..) |*m, i| m.* = i % 2 == 0;
        break :blk @as(@Vector(count, bool), mask);
    };
    return @bitCast(@select(Part, even, @as(V, @bitCast(x)), @as(V, @bitCast(x << @splat(shift)))));
}

/// The `bits` bytes of each 8 dimensions at the start of a word.
inline fn groups(comptime bits: u32, p: [*]const u8) Bytes {
    if (vnni) {
        const mask = comptime blk: {
            var m: [64]i32 = undefined;
            for (&m, 0..) |*index, i| index.* = @min(63, i / 8 * bits + i % 8);
            break :blk @as(@Vector(64, i32), m);
        };
        return @shuffle(u8, load(Bytes, p), undefined, mask);
    }
    if (avx2) { // 16 dimensions in each half of the register
        const both = std.simd.join(load(@Vector(16, u8), p), load(@Vector(16, u8), p + 2 * bits));
        const mask = comptime blk: {
            var m: [32]i32 = undefined;
            for (&m, 0..) |*index, i| index.* = i / 16 * 16 + i % 16 / 8 * bits + i % 8;
            break :blk @as(@Vector(32, i32), m);
        };
        return @shuffle(u8, both, undefined, mask);
    }
    return @bitCast(Words{ load(u64, p), load(u64, p + bits) });
}

/// Byte k of a word selects the 8 bits of the same word of `data` from this bit on.
fn multishift_control(comptime bits: u32) Bytes {
    var control: [64]u8 = undefined;
    for (&control, 0..) |*c, i| c.* = i % 8 * bits;
    return control;
}

inline fn multishift(control: Bytes, data: Bytes) Bytes {
    return asm ("vpmultishiftqb %[data], %[control], %[out]"
        : [out] "=v" (-> Bytes),
        : [control] "v" (control),
          [data] "v" (data),
    );
}

// ---- multiplying ----

/// sums += codes·query, each sum over 4 neighboring dimensions (any 4: in the end all are added).
inline fn multiply_add(comptime bits: u32, sums: Sums, codes: Bytes, query: Signed) Sums {
    if (vnni) return asm ("vpdpbusd %[query], %[codes], %[out]"
        : [out] "=v" (-> Sums),
        : [codes] "v" (codes),
          [query] "v" (query),
          [sums] "0" (sums),
    );
    if (avx2 and bits < 8) { // pairs fit 16 bits: 2·127·128 < 2^15
        const pairs = asm ("vpmaddubsw %[query], %[codes], %[out]"
            : [out] "=x" (-> @Vector(16, i16)),
            : [codes] "x" (codes),
              [query] "x" (query),
        );
        return sums + pair_sums(pairs, @splat(1));
    }
    if (dotprod and bits < 8) return asm ("sdot %[out].4s, %[codes].16b, %[query].16b"
        : [out] "=w" (-> Sums),
        : [codes] "w" (codes),
          [query] "w" (query),
          [sums] "0" (sums),
    );
    const half = step / 2;
    const first = pair_sums(@as(@Vector(half, u8), slice(codes, 0, half)), @as(@Vector(half, i8), slice(query, 0, half)));
    const second = pair_sums(@as(@Vector(half, u8), slice(codes, half, half)), @as(@Vector(half, i8), slice(query, half, half)));
    return sums + first + second;
}

/// The same, where lane k of the sums is of dimensions 4·k to 4·k + 3.
inline fn multiply_add_quads(comptime bits: u32, sums: Sums, codes: Bytes, query: Signed) Sums {
    if (vnni or (avx2 and bits < 8) or (dotprod and bits < 8)) return multiply_add(bits, sums, codes, query);
    const half = step / 2;
    const first = pair_sums(@as(@Vector(half, u8), slice(codes, 0, half)), @as(@Vector(half, i8), slice(query, 0, half)));
    const second = pair_sums(@as(@Vector(half, u8), slice(codes, half, half)), @as(@Vector(half, i8), slice(query, half, half)));
    return sums + @shuffle(i32, first, second, every_second(0)) + @shuffle(i32, first, second, every_second(1));
}

fn every_second(comptime from: i32) @Vector(lanes, i32) {
    var mask: [lanes]i32 = undefined;
    for (&mask, 0..) |*m, i| {
        const pair: i32 = @intCast(2 * (i % (lanes / 2)));
        m.* = if (i < lanes / 2) pair + from else ~(pair + from);
    }
    return mask;
}

inline fn slice(v: anytype, comptime start: usize, comptime len: usize) @Vector(len, std.meta.Child(@TypeOf(v))) {
    return std.simd.extract(v, start, len);
}

/// a_0·b_0 + a_1·b_1, a_2·b_2 + a_3·b_3, …
inline fn pair_sums(a: @Vector(step / 2, i16), b: @Vector(step / 2, i16)) Sums {
    if (avx2) return asm ("vpmaddwd %[b], %[a], %[out]"
        : [out] "=x" (-> Sums),
        : [a] "x" (a),
          [b] "x" (b),
    );
    if (x86) return asm ("pmaddwd %[b], %[out]"
        : [out] "=x" (-> Sums),
        : [a] "0" (a),
          [b] "x" (b),
    );
    const products = @as(@Vector(step / 2, i32), a) * @as(@Vector(step / 2, i32), b);
    const even, const odd = std.simd.deinterlace(2, products);
    return even + odd;
}

// ---- adding up ----

/// The totals of four registers. Neighbors first, within each 128 bits, so that four registers become one early.
inline fn totals(s: [4]Sums) @Vector(4, i32) {
    const a = interleaved_sum(1, s[0], s[1]);
    const b = interleaved_sum(1, s[2], s[3]);
    const c = interleaved_sum(2, a, b);
    if (lanes == 16) {
        const half = slice(c, 0, 8) + slice(c, 8, 8);
        return slice(half, 0, 4) + slice(half, 4, 4);
    }
    if (lanes == 8) return slice(c, 0, 4) + slice(c, 4, 4);
    return c;
}

/// In each 128 bits: the lower halves of a and b interleaved by `width` lanes, plus the upper halves likewise.
inline fn interleaved_sum(comptime width: u32, a: Sums, b: Sums) Sums {
    const lower = comptime interleave_mask(width, 0);
    const upper = comptime interleave_mask(width, 2);
    return @shuffle(i32, a, b, lower) + @shuffle(i32, a, b, upper);
}

fn interleave_mask(comptime width: u32, comptime offset: i32) @Vector(lanes, i32) {
    var mask: [lanes]i32 = undefined;
    for (&mask, 0..) |*m, i| {
        const block: i32 = i / 4 * 4;
        const within = i % 4; // width 1: a0 b0 a1 b1; width 2: a0 a1 b0 b1
        const from_b = if (width == 1) within % 2 == 1 else within >= 2;
        const lane: i32 = if (width == 1) within / 2 else within % 2;
        const index = block + offset + lane;
        m.* = if (from_b) ~index else index;
    }
    return mask;
}

/// Dot products of four codes with each of `planes` queries.
inline fn dots(comptime bits: u32, comptime planes: u32, comptime chunks_fixed: ?usize, queries: [planes][*]align(64) const i8, chunks: usize, codes: [4][*]const u8) [planes]@Vector(4, i32) {
    var sums: [planes][4]Sums = @splat(@splat(@splat(0)));
    if (chunks_fixed) |fixed| {
        inline for (0..fixed) |c| add_chunk(bits, planes, &sums, queries, codes, c);
    } else {
        for (0..chunks) |c| add_chunk(bits, planes, &sums, queries, codes, c);
    }
    var out: [planes]@Vector(4, i32) = undefined;
    inline for (0..planes) |p| out[p] = totals(sums[p]);
    return out;
}

inline fn add_chunk(comptime bits: u32, comptime planes: u32, sums: *[planes][4]Sums, queries: [planes][*]align(64) const i8, codes: [4][*]const u8, c: usize) void {
    var query: [planes]Signed = undefined;
    inline for (0..planes) |p| query[p] = @as(*const Signed, @ptrCast(@alignCast(queries[p] + c * step))).*;
    inline for (0..4) |k| {
        const values = unpack(bits, codes[k] + c * (step / 8 * bits));
        inline for (0..planes) |p| sums[p][k] = multiply_add(bits, sums[p][k], values, query[p]);
    }
}

// ---- kernels ----

inline fn prefetch(start: [*]const u8, len: usize) void {
    var offset: usize = 0;
    while (offset < len) : (offset += 64) @prefetch(start + offset, .{ .locality = 3 });
    @prefetch(start + len - 1, .{ .locality = 3 }); // an unaligned code touches one line more
}

fn chunks_of(dim: u32) usize {
    return (@as(usize, dim) + step - 1) / step;
}

/// The common dimension whose loops are unrolled.
const dim_unrolled = 128;

pub fn estimate_gather(query: [*]align(64) const i8, dim: u32, bits: u32, codes: [*]const u8, factors: [*]const u32, ids: [*]const u32, count: u32, asked: u32, terms: *const abi.EstimateTerms, out: [*]f32) callconv(.c) void {
    switch (bits) {
        inline 1...8 => |b| if (dim == dim_unrolled)
            estimate(b, dim_unrolled, query, dim, codes, factors, ids, count, asked, terms, out)
        else
            estimate(b, null, query, dim, codes, factors, ids, count, asked, terms, out),
        else => unreachable,
    }
}

fn estimate(comptime bits: u32, comptime dim_fixed: ?u32, query: [*]align(64) const i8, dim_given: u32, codes: [*]const u8, factors: [*]const u32, ids: [*]const u32, count: u32, asked: u32, terms: *const abi.EstimateTerms, out: [*]f32) void {
    @setEvalBranchQuota(100_000);
    const dim = dim_fixed orelse dim_given;
    const code_bytes = @as(usize, dim) / 8 * bits;
    const t = terms.*;
    for (asked..@max(asked, @min(ahead, count))) |j| prefetch_code(codes, factors, t.centers, code_bytes, ids[j]);
    var j: usize = 0;
    while (j < count) : (j += 4) {
        var entries: [4][*]const u8 = undefined;
        // The last round repeats its last code instead of having code of its own.
        var pairs: @Vector(4, u32) = undefined;
        var query_terms: @Vector(4, f32) = undefined;
        inline for (0..4) |k| {
            const id = ids[@min(j + k, count - 1)];
            entries[k] = codes + id * code_bytes;
            pairs[k] = factors[id];
            query_terms[k] = t.query_terms[t.centers[id]];
        }
        inline for (0..4) |k| if (j + ahead + k < count) prefetch_code(codes, factors, t.centers, code_bytes, ids[j + ahead + k]);
        const dot = dots(bits, 1, if (dim_fixed) |d| comptime chunks_of(d) else null, .{query}, chunks_of(dim), entries)[0];
        const distances = convert(dot, pairs, query_terms, t);
        if (j + 4 <= count) {
            out[j..][0..4].* = distances;
        } else {
            inline for (0..3) |k| if (j + k < count) {
                out[j + k] = distances[k];
            };
        }
    }
}

inline fn prefetch_code(codes: [*]const u8, factors: [*]const u32, centers: [*]const u8, code_bytes: usize, id: u32) void {
    prefetch(codes + id * code_bytes, code_bytes);
    @prefetch(&factors[id], .{ .locality = 3 });
    @prefetch(&centers[id], .{ .locality = 3 });
}

inline fn convert(dot: anytype, factors: anytype, query_terms: anytype, t: abi.EstimateTerms) @TypeOf(query_terms) {
    const F = @TypeOf(query_terms);
    const U = @TypeOf(factors);
    const offset: F = @bitCast((factors & @as(U, @splat(0xffff))) << @splat(15));
    const f: F = @bitCast((factors >> @splat(16)) << @splat(15));
    const inner = @as(F, @floatFromInt(dot)) * @as(F, @splat(t.scale)) - @as(F, @splat(t.bias));
    return offset + query_terms - f * inner;
}

pub fn estimate_blocks(query: [*]align(64) const i8, dim: u32, cell: u32, blocks: [*]align(64) const u8, factors: [*]const u32, count: u32, reach: f32, terms: *const abi.EstimateTerms, out: [*]f32, near: [*]u32) callconv(.c) void {
    switch (cell) {
        inline 1, 2, 4, 8 => |c| if (dim == dim_unrolled)
            estimates_of(c, dim_unrolled, query, dim, blocks, factors, count, reach, terms, out, near)
        else
            estimates_of(c, null, query, dim, blocks, factors, count, reach, terms, out, near),
        else => unreachable,
    }
}

/// Registers that hold a word of each row of a block.
const block_registers = abi.block_rows / lanes;
/// Rows of a block whose sums become distances together.
const converted = 16;

fn estimates_of(comptime cell: u32, comptime dim_fixed: ?u32, query: [*]align(64) const i8, dim_given: u32, blocks: [*]align(64) const u8, factors: [*]const u32, count: u32, reach: f32, terms: *const abi.EstimateTerms, out: [*]f32, near: [*]u32) void {
    @setEvalBranchQuota(100_000);
    const words = abi.block_words(dim_fixed orelse dim_given, cell);
    const t = terms.*;
    for (0..count) |b| {
        const block = blocks + b * words * 4 * abi.block_rows;
        var sums: [cells_apart(cell)][block_registers]Sums = @splat(@splat(@splat(0)));
        for (0..words) |w| add_word(cell, &sums, query + w * (32 / cell), block + w * 4 * abi.block_rows);
        var dot: [abi.block_rows]i32 align(64) = undefined;
        inline for (0..block_registers) |r| {
            var sum = sums[0][r];
            inline for (1..sums.len) |s| sum += sums[s][r] >> @splat(s * cell);
            dot[r * lanes ..][0..lanes].* = sum;
        }
        var bits: u32 = 0;
        inline for (0..abi.block_rows / converted) |part| {
            const at = b * abi.block_rows + part * converted;
            const pairs: @Vector(converted, u32) = factors[at..][0..converted].*;
            const inner: @Vector(converted, i32) = dot[part * converted ..][0..converted].*;
            const distances = convert(inner, pairs, terms_of(t.query_terms, t.centers + at), t);
            out[at..][0..converted].* = distances;
            const within: std.meta.Int(.unsigned, converted) = @bitCast(distances <= @as(@Vector(converted, f32), @splat(reach)));
            bits |= @as(u32, within) << part * converted;
        }
        near[b] = bits;
    }
}

/// Cells of a byte with sums of their own: they need no shift before they are multiplied, and one of their sum. Only where a product
/// of a whole byte loses nothing.
fn cells_apart(comptime cell: u32) comptime_int {
    return if (vnni) 8 / cell else 1;
}

/// Adds a word of each row.
inline fn add_word(comptime cell: u32, sums: *[cells_apart(cell)][block_registers]Sums, query: [*]const i8, words: [*]const u8) void {
    const Halves = @Vector(step / 2, u16);
    const apart = sums.len == 8 / cell;
    var codes: [block_registers]Bytes = undefined;
    inline for (&codes, 0..) |*code, r| code.* = load(Bytes, words + r * step);
    inline for (0..8 / cell) |s| {
        const four: Signed = @bitCast(@as(Sums, @splat(@as(*align(1) const i32, @ptrCast(query + 4 * s)).*)));
        const mask: Bytes = @splat(((1 << cell) - 1) << (if (apart) s * cell else 0));
        inline for (&sums[if (apart) s else 0], codes) |*sum, code| {
            const shifted: Bytes = if (apart) code else @bitCast(@as(Halves, @bitCast(code)) >> @splat(s * cell));
            sum.* = multiply_add_quads(cell, sum.*, if (cell == 8) code else shifted & mask, four);
        }
    }
}

/// Neighbors mostly have one center.
inline fn terms_of(query_terms: *const [abi.centers_max]f32, centers: [*]const u8) @Vector(converted, f32) {
    const some: @Vector(converted, u8) = centers[0..converted].*;
    if (@reduce(.And, some == @as(@Vector(converted, u8), @splat(some[0])))) return @splat(query_terms[some[0]]);
    var found: @Vector(converted, f32) = undefined;
    inline for (0..converted) |i| found[i] = query_terms[centers[i]];
    return found;
}

pub fn pair_gather(plane: [*]align(64) const i8, dim: u32, codes: [*]const u8, factors: [*]const abi.PairFactors, ids: [*]const u32, count: u32, terms: *const abi.PairTerms, out: [*]f32) callconv(.c) void {
    if (dim == dim_unrolled)
        pairs_of(dim_unrolled, plane, dim, codes, factors, ids, count, terms, out)
    else
        pairs_of(null, plane, dim, codes, factors, ids, count, terms, out);
}

fn pairs_of(comptime dim_fixed: ?u32, plane: [*]align(64) const i8, dim_given: u32, codes: [*]const u8, factors: [*]const abi.PairFactors, ids: [*]const u32, count: u32, terms: *const abi.PairTerms, out: [*]f32) void {
    @setEvalBranchQuota(100_000);
    const F = @Vector(4, f32);
    const dim: usize = dim_fixed orelse dim_given;
    const t = terms.*;
    for (0..@min(ahead, count)) |j| prefetch_pair(codes, factors, dim, ids[j]);
    var j: usize = 0;
    while (j < count) : (j += 4) {
        var starts: [4][*]const u8 = undefined;
        var norm2: F = undefined;
        var f: F = undefined;
        var sum: @Vector(4, i32) = undefined;
        inline for (0..4) |k| {
            const id = ids[@min(j + k, count - 1)];
            starts[k] = codes + id * dim;
            norm2[k] = factors[id].norm2;
            f[k] = factors[id].f;
            sum[k] = factors[id].sum;
        }
        inline for (0..4) |k| if (j + ahead + k < count) prefetch_pair(codes, factors, dim, ids[j + ahead + k]);
        const dot = dots(8, 1, if (dim_fixed) |d| comptime chunks_of(d) else null, .{plane}, chunks_of(@intCast(dim)), starts)[0];
        const inner: F = @floatFromInt(dot + dot + sum + @as(@Vector(4, i32), @splat(t.bias)));
        const distances = @max(@as(F, @splat(0)), norm2 + @as(F, @splat(t.norm2)) - @as(F, @splat(t.f)) * f * inner);
        inline for (0..4) |k| if (j + k < count) {
            out[j + k] = distances[k];
        };
    }
}

inline fn prefetch_pair(codes: [*]const u8, factors: [*]const abi.PairFactors, dim: usize, id: u32) void {
    prefetch(codes + id * dim, dim);
    @prefetch(&factors[id], .{ .locality = 3 });
}

pub fn dot_gather2(hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, bits: u32, base: [*]const u8, stride: usize, ids: [*]const u32, count: u32, out_hi: [*]i32, out_lo: [*]i32) callconv(.c) void {
    switch (bits) {
        inline 1...8 => |b| two_planes(b, null, hi, lo, dim, base, stride, ids, count, out_hi, out_lo),
        else => unreachable,
    }
}

pub fn dot_rows(hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, bits: u32, rows: [*]const u8, stride: usize, count: u32, out_hi: [*]i32, out_lo: [*]i32) callconv(.c) void {
    switch (bits) {
        inline 1...8 => |b| if (dim == dim_unrolled)
            two_planes(b, dim_unrolled, hi, lo, dim, rows, stride, null, count, out_hi, out_lo)
        else
            two_planes(b, null, hi, lo, dim, rows, stride, null, count, out_hi, out_lo),
        else => unreachable,
    }
}

/// Records whose distances are found together.
const records_at_once = 8;

pub fn record_distances(all: *const abi.RecordDots, records: *const abi.Records, terms: *const abi.RecordTerms, count: u32, out: [*]f32) callconv(.c) void {
    if (count < records_at_once) return scalar.record_distances(all, records, terms, count, out);
    var j: u32 = 0;
    while (true) {
        some_distances(all, records, terms, j, out);
        if (j + records_at_once == count) return;
        j = @min(j + records_at_once, count - records_at_once); // some of the last twice
    }
}

inline fn some_distances(all: *const abi.RecordDots, records: *const abi.Records, terms: *const abi.RecordTerms, j: u32, out: [*]f32) void {
    const F = @Vector(records_at_once, f32);
    const U = @Vector(records_at_once, u32);
    const I = @Vector(records_at_once, i64);
    var inner = whole(&all.upper_hi, &all.upper_lo, j);
    if (terms.record_bits > 0) inner = (inner << @splat(@intCast(terms.record_bits))) + whole(&all.lower_hi, &all.lower_lo, j);
    var query_terms: F = undefined;
    inline for (0..records_at_once) |i| query_terms[i] = terms.query_terms[records.centers[j + i]];
    const factors: U = records.factors[j..][0..records_at_once].*;
    const f_upper: F = @bitCast((factors >> @splat(16)) << @splat(15));
    const offsets: F = @as(*align(1) const [records_at_once]f32, @ptrCast(records.offsets + j)).*;
    const ratios: @Vector(records_at_once, u16) = @as(*align(1) const [records_at_once]u16, @ptrCast(records.ratios + j)).*;
    const f = f_upper * (@as(F, @floatFromInt(ratios)) * @as(F, @splat(terms.ratio_step)));
    const twice_inner: F = @floatFromInt(inner + inner - @as(I, @splat(terms.bias)));
    out[j..][0..records_at_once].* = offsets + query_terms - f * (twice_inner * @as(F, @splat(terms.step)));
}

inline fn whole(hi: *const [abi.records_together]i32, lo: *const [abi.records_together]i32, j: u32) @Vector(records_at_once, i64) {
    const V = @Vector(records_at_once, i32);
    const high: V = hi[j..][0..records_at_once].*;
    const low: V = lo[j..][0..records_at_once].*;
    return (@as(@Vector(records_at_once, i64), high) << @splat(8)) + @as(@Vector(records_at_once, i64), low);
}

fn two_planes(comptime bits: u32, comptime dim_fixed: ?u32, hi: [*]align(64) const i8, lo: [*]align(64) const i8, dim: u32, base: [*]const u8, stride: usize, ids: ?[*]const u32, count: u32, out_hi: [*]i32, out_lo: [*]i32) void {
    @setEvalBranchQuota(100_000);
    if (ids) |list| for (list[0..count]) |id| prefetch(base + id * stride, @as(usize, dim) / 8 * bits);
    var j: usize = 0;
    while (j < count) : (j += 4) {
        var codes: [4][*]const u8 = undefined;
        inline for (0..4) |k| {
            const row = @min(j + k, count - 1);
            codes[k] = base + (if (ids) |list| list[row] else row) * stride;
        }
        const both = dots(bits, 2, if (dim_fixed) |d| comptime chunks_of(d) else null, .{ hi, lo }, chunks_of(dim), codes);
        inline for (0..4) |k| if (j + k < count) {
            out_hi[j + k] = both[0][k];
            out_lo[j + k] = both[1][k];
        };
    }
}
