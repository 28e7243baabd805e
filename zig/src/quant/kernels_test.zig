//! Every compiled kernel of every level that this processor runs, against the definition.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const dispatch = @import("dispatch.zig");
const Element = @import("kernels/abi.zig").Element;
const RowSum = @import("kernels/abi.zig").RowSum;
const abi = @import("kernels/abi.zig");
const blocks = @import("blocks.zig");
const scalar = @import("kernels/scalar.zig");
const alloc = testing.allocator;

const dims = [_]u32{ 16, 32, 48, 64, 80, 112, 128, 144, 208, 240, 256, 336, 384, 432, 496, 624, 768, 784, 1008, 1040, 4096, 8208 };
const counts = [_]u32{ 0, 1, 2, 3, 4, 5, 7, 8, 13, 21 };

const Fill = enum { random, zeros, ones, extremes };

fn fill_bytes(prng: *base.Prng, how: Fill, bytes: []u8) void {
    for (bytes) |*byte| byte.* = switch (how) {
        .random => @truncate(prng.next()),
        .zeros => 0,
        .ones => 0xff,
        .extremes => if (prng.boolean()) 0xff else 0,
    };
}

fn fill_query(prng: *base.Prng, how: Fill, query: []i8, dim: u32) void {
    for (query[0..dim]) |*q| q.* = switch (how) {
        .random => @bitCast(@as(u8, @truncate(prng.next()))),
        .zeros => 0,
        .ones => -128,
        .extremes => if (prng.boolean()) 127 else -128,
    };
    @memset(query[dim..], 0);
}

fn run_levels(comptime check: fn (k: *const dispatch.Kernels, seed: u64) anyerror!void) !void {
    const seed = testing.random_seed;
    for (0..@intFromEnum(base.cpu.detect()) + 1) |i| {
        const level: base.cpu.Level = @enumFromInt(i);
        errdefer std.debug.print("level {t}, seed {}\n", .{ level, seed });
        try check(dispatch.kernels_of(level), seed);
    }
}

/// Arrays for one dimension: codes that end `code_padding` bytes before the end of their pages, so that a kernel which
/// reads farther faults.
const Case = struct {
    dim: u32,
    hi: []align(64) i8,
    lo: []align(64) i8,
    memory: base.AlignedBytes,

    const vectors = 23;

    fn init(dim: u32) !Case {
        const width = std.mem.alignForward(usize, dim, 64);
        const room = (dim + 16) * vectors + base.limits.code_padding;
        const memory = try base.AlignedBytes.alloc(std.mem.alignForward(usize, room, 4096) + 4096, .{});
        try std.posix.mprotect(@alignCast(memory.bytes[memory.bytes.len - 4096 ..]), std.posix.PROT.NONE);
        return .{
            .dim = dim,
            .hi = try alloc.alignedAlloc(i8, .@"64", width),
            .lo = try alloc.alignedAlloc(i8, .@"64", width),
            .memory = memory,
        };
    }

    fn deinit(self: *Case) void {
        alloc.free(self.hi);
        alloc.free(self.lo);
        self.memory.free();
    }

    fn codes(self: *Case, len: usize) []u8 {
        const end = self.memory.bytes.len - 4096 - base.limits.code_padding;
        return self.memory.bytes[end - len .. end];
    }
};

test "code kernels agree with the definition: all widths, dimensions, counts and extremes" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            for (dims) |dim| {
                var case = try Case.init(dim);
                defer case.deinit();
                for (1..9) |bits| for ([_]Fill{ .random, .zeros, .ones, .extremes }) |how| {
                    errdefer std.debug.print("dim {}, bits {}, {t}\n", .{ dim, bits, how });
                    if (dim > 2000 and (how == .zeros or how == .random)) continue;
                    fill_query(&prng, how, case.hi, dim);
                    fill_query(&prng, if (how == .zeros) .random else how, case.lo, dim);
                    try check_width(k, &case, &prng, @intCast(bits), how);
                };
            }
        }
    }.check);
}

fn check_width(k: *const dispatch.Kernels, case: *Case, prng: *base.Prng, bits: u32, how: Fill) !void {
    const dim = case.dim;
    const code_bytes = dim / 8 * bits;
    const stride = code_bytes;
    const bytes = case.codes(stride * Case.vectors);
    fill_bytes(prng, how, bytes);
    var pairs: [Case.vectors]u32 = undefined;
    // Floats of moderate size: exponents 119 to 134.
    for (&pairs) |*pair| pair.* = (@as(u32, @truncate(prng.next())) & 0x0fff_0fff) + 0x7700_7700;
    var centers: [Case.vectors]u8 = undefined;
    for (&centers) |*center| center.* = @truncate(prng.next());
    var query_terms: [abi.centers_max]f32 = undefined;
    for (&query_terms) |*term| term.* = 1000 * prng.gaussian();
    const terms = abi.EstimateTerms{ .centers = &centers, .query_terms = &query_terms, .scale = 0.03, .bias = prng.gaussian() };
    for (counts) |count| {
        if (dim > 300 and count != 7 and count != 0) continue; // the definition is slow
        errdefer std.debug.print("count {}\n", .{count});
        var ids: [21]u32 = undefined;
        for (&ids) |*id| id.* = @intCast(prng.below(Case.vectors));
        if (count > 0) ids[count - 1] = Case.vectors - 1; // the one before the padding

        const marker = 1234.5;
        var expected: [22]f32 = @splat(marker);
        var found: [22]f32 = @splat(marker);
        scalar.estimate_gather(case.hi.ptr, dim, bits, bytes.ptr, &pairs, &ids, count, 0, &terms, &expected);
        k.estimate_gather(case.hi.ptr, dim, bits, bytes.ptr, &pairs, &ids, count, count / 2, &terms, &found);
        try testing.expectEqualSlices(f32, &expected, &found); // the same operations in the same order: the same bits

        var dots: [4][22]i32 = @splat(@splat(4321));
        scalar.dot_gather2(case.hi.ptr, case.lo.ptr, dim, bits, bytes.ptr, stride, &ids, count, &dots[0], &dots[1]);
        k.dot_gather2(case.hi.ptr, case.lo.ptr, dim, bits, bytes.ptr, stride, &ids, count, &dots[2], &dots[3]);
        try testing.expectEqualSlices(i32, &dots[0], &dots[2]);
        try testing.expectEqualSlices(i32, &dots[1], &dots[3]);

        const rows = case.codes(code_bytes * count);
        scalar.dot_rows(case.hi.ptr, case.lo.ptr, dim, bits, rows.ptr, code_bytes, count, &dots[0], &dots[1]);
        k.dot_rows(case.hi.ptr, case.lo.ptr, dim, bits, rows.ptr, code_bytes, count, &dots[2], &dots[3]);
        try testing.expectEqualSlices(i32, &dots[0], &dots[2]);
        try testing.expectEqualSlices(i32, &dots[1], &dots[3]);

        if (bits != 8) continue;
        const codes = case.codes(dim * Case.vectors);
        var factors: [Case.vectors]abi.PairFactors = undefined;
        for (&factors) |*factor| factor.* = .{ .norm2 = prng.float() * 1e6, .f = prng.float(), .sum = @intCast(prng.below(255 * dim)) };
        const pair_terms = abi.PairTerms{ .norm2 = 3e5, .f = 0.7, .bias = -@as(i32, @intCast(prng.below(255 * 128 * dim))) };
        scalar.pair_gather(case.hi.ptr, dim, codes.ptr, &factors, &ids, count, &pair_terms, &expected);
        k.pair_gather(case.hi.ptr, dim, codes.ptr, &factors, &ids, count, &pair_terms, &found);
        try testing.expectEqualSlices(f32, &expected, &found);
    }
}

test "blocks of codes agree with the definition, and with single codes: all widths, dimensions and extremes" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            for (dims) |dim| for (1..9) |bits_usize| for ([_]Fill{ .random, .ones, .extremes }) |how| {
                if (dim > 300 and how == .ones) continue; // the definition is slow
                const bits: u8 = @intCast(bits_usize);
                errdefer std.debug.print("dim {}, bits {}, {t}\n", .{ dim, bits, how });
                const rows = 2 * abi.block_rows;
                const width = std.mem.alignForward(usize, dim, 64);
                const query = try alloc.alignedAlloc(i8, .@"64", width);
                defer alloc.free(query);
                fill_query(&prng, how, query, dim);
                const codes = try alloc.alloc(u8, rows * dim / 8 * bits + base.limits.code_padding);
                defer alloc.free(codes);
                fill_bytes(&prng, how, codes);
                const block_bytes = blocks.block_bytes(dim, bits);
                const bytes = try alloc.alignedAlloc(u8, .@"64", 2 * block_bytes);
                defer alloc.free(bytes);
                @memset(bytes, 0);
                var ids: [rows]u32 = undefined;
                var factors: [rows]u32 = undefined;
                var centers: [rows]u8 = undefined;
                const one_center = prng.boolean();
                for (&ids, &factors, &centers, 0..) |*id, *pair, *center, row| {
                    id.* = @intCast(row);
                    pair.* = (@as(u32, @truncate(prng.next())) & 0x0fff_0fff) + 0x7700_7700;
                    center.* = if (one_center) 7 else @truncate(prng.next());
                    blocks.put(dim, bits, bytes[row / abi.block_rows * block_bytes ..][0..block_bytes], row % abi.block_rows, codes[row * dim / 8 * bits ..]);
                }
                var query_terms: [abi.centers_max]f32 = undefined;
                for (&query_terms) |*term| term.* = 1000 * prng.gaussian();
                const terms = abi.EstimateTerms{ .centers = &centers, .query_terms = &query_terms, .scale = 0.03, .bias = prng.gaussian() };
                var alone: [rows]f32 = undefined;
                scalar.estimate_gather(query.ptr, dim, bits, codes.ptr, &factors, &ids, rows, 0, &terms, &alone);
                const reach = alone[@intCast(prng.below(rows))];
                var out: [2][rows + 1]f32 = @splat(@splat(1234.5));
                var near: [2][3]u32 = @splat(@splat(99));
                const cell = blocks.cell_of(bits);
                for ([_]u32{ 2, 1, 0 }) |count| {
                    scalar.estimate_blocks(query.ptr, dim, cell, bytes.ptr, &factors, count, reach, &terms, &out[0], &near[0]);
                    k.estimate_blocks(query.ptr, dim, cell, bytes.ptr, &factors, count, reach, &terms, &out[1], &near[1]);
                    try testing.expectEqualSlices(f32, &out[0], &out[1]);
                    try testing.expectEqual(near[0], near[1]);
                }
                try testing.expectEqualSlices(f32, &alone, out[0][0..rows]);
            };
        }
    }.check);
}

test "lists of candidates agree with the definition: all lengths, equal distances, infinities and what is no number" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            const room = 300 + abi.list_padding;
            for (0..3000) |_| {
                const limit: u32 = @intCast(1 + prng.below(if (prng.boolean()) 20 else 300));
                const spread = 1 + prng.below(1000);
                var lists: [2][room]abi.Candidate = @splat(@splat(.none));
                var lens: [2]u32 = @splat(0);
                for (0..20) |_| {
                    const count: u32 = @intCast(prng.below(abi.inserted_max + 1));
                    var vertices: [abi.inserted_max]u32 = undefined;
                    var distances: [abi.inserted_max]f32 = undefined;
                    for (&vertices, &distances) |*vertex, *distance| {
                        vertex.* = @as(u31, @truncate(prng.next()));
                        distance.* = switch (prng.below(40)) {
                            0 => std.math.inf(f32),
                            1 => -std.math.inf(f32),
                            2 => std.math.nan(f32),
                            else => @as(f32, @floatFromInt(prng.below(spread))) - 100,
                        };
                    }
                    const reach = if (prng.below(3) == 0) @as(f32, @floatFromInt(prng.below(spread))) - 100 else std.math.inf(f32);
                    var out: [2]abi.Inserted = undefined;
                    scalar.insert_nearest(&lists[0], lens[0], limit, reach, &vertices, &distances, count, &out[0]);
                    k.insert_nearest(&lists[1], lens[1], limit, reach, &vertices, &distances, count, &out[1]);
                    try testing.expectEqual(out[0], out[1]);
                    for (&lens, out) |*len, one| len.* = one.len;
                    try testing.expectEqualSlices(abi.Candidate, lists[0][0..lens[0]], lists[1][0..lens[1]]);
                    // Some are followed, which moves none.
                    for (0..lens[0]) |i| if (prng.below(4) == 0) for (&lists) |*list| {
                        list[i].key |= 1;
                    };
                }
            }
        }
    }.check);
}

test "distances to records agree with the definition, to the bit" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            const room = abi.records_together;
            for (0..600) |_| {
                const count: u32 = @intCast(prng.below(room + 1));
                const record_bits: u32 = @intCast(prng.below(9));
                var dots: abi.RecordDots = undefined;
                inline for (std.meta.fields(abi.RecordDots)) |field| {
                    for (&@field(dots, field.name)) |*dot| dot.* = @as(i28, @truncate(@as(i64, @bitCast(prng.next()))));
                }
                var factors: [room]u32 = undefined;
                var centers: [room]u8 = undefined;
                for (&factors, &centers) |*pair, *center| {
                    pair.* = (@as(u32, @truncate(prng.next())) & 0x0fff_0fff) + 0x7700_7700;
                    center.* = @truncate(prng.next());
                }
                // As in a page, at any address, and nothing behind the last one.
                var bytes: [1 + 6 * room]u8 = undefined;
                const offsets: [*]align(1) f32 = @ptrCast(bytes[1..].ptr);
                const ratios: [*]align(1) u16 = @ptrCast(bytes[1 + 4 * count ..].ptr);
                for (0..count) |j| {
                    offsets[j] = 1000 * prng.gaussian();
                    ratios[j] = @truncate(prng.next());
                }
                const records = abi.Records{ .factors = &factors, .centers = &centers, .offsets = offsets, .ratios = ratios };
                var query_terms: [abi.centers_max]f32 = undefined;
                for (&query_terms) |*term| term.* = 1000 * prng.gaussian();
                const terms = abi.RecordTerms{ .query_terms = &query_terms, .bias = @as(i40, @truncate(@as(i64, @bitCast(prng.next())))), .step = prng.float(), .ratio_step = 1e-6 * prng.float(), .record_bits = record_bits };
                var out: [2][room + 1]f32 = @splat(@splat(1234.5));
                scalar.record_distances(&dots, &records, &terms, count, &out[0]);
                k.record_distances(&dots, &records, &terms, count, &out[1]);
                try testing.expectEqualSlices(f32, &out[0], &out[1]);
            }
        }
    }.check);
}

test "float kernels agree with the definition" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            for (dims) |dim| {
                errdefer std.debug.print("dim {}\n", .{dim});
                const x = try alloc.alloc(f32, dim);
                defer alloc.free(x);
                const y = try alloc.alloc(f32, dim);
                defer alloc.free(y);
                const z = try alloc.alloc(f32, dim);
                defer alloc.free(z);
                for (x, y) |*a, *b| {
                    a.* = prng.gaussian() * 5;
                    b.* = prng.gaussian();
                }
                const scale = @sqrt(scalar.sum_squares(x.ptr, dim) * scalar.sum_squares(y.ptr, dim));
                for ([_]u32{ 0, 1, 15, dim - 1, dim }) |len| {
                    try testing.expectApproxEqAbs(scalar.dot(x.ptr, y.ptr, len), k.dot(x.ptr, y.ptr, len), 1e-5 * scale);
                    try testing.expectApproxEqRel(scalar.sum_squares(x.ptr, len), k.sum_squares(x.ptr, len), 1e-5);
                }
                try check_products(k, &prng, dim - 1);
                try check_quantise(k, &prng, x);
                @memcpy(z, x);
                scalar.multiply(z.ptr, y.ptr, dim - 1);
                k.multiply(x.ptr, y.ptr, dim - 1);
                try testing.expectEqualSlices(f32, z, x);

                @memcpy(z, x);
                const block = std.math.floorPowerOfTwo(u32, dim);
                scalar.hadamard(z.ptr, block);
                k.hadamard(x.ptr, block);
                for (z, x) |a, b| try testing.expectApproxEqAbs(a, b, 1e-5 * @sqrt(scalar.sum_squares(z.ptr, dim)));

                for (y) |*b| b.* = @abs(b.*);
                for ([_][3]f32{ .{ 3, 7, 0.25 }, .{ 50, 127, 0.0625 }, .{ 0.1, 0, 1 }, .{ 9000, 32767, 0x1p-8 } }) |p| {
                    var expected: abi.CodeScores = undefined;
                    var found: abi.CodeScores = undefined;
                    scalar.code_scores(y.ptr, dim, p[0], p[1], p[2], &expected);
                    k.code_scores(y.ptr, dim, p[0], p[1], p[2], &found);
                    inline for (std.meta.fields(abi.CodeScores)) |field| {
                        try testing.expectApproxEqRel(@field(expected, field.name), @field(found, field.name), 1e-4);
                    }
                }
            }
        }
    }.check);
}

fn check_products(k: *const abi.Kernels, prng: *base.Prng, len: u32) !void {
    for ([_][2]u32{ .{ 1, 1 }, .{ 4, 4 }, .{ 3, 9 }, .{ 9, 6 }, .{ 2, 300 } }) |shape| {
        const rows = try alloc.alloc(f64, (shape[0] + shape[1]) * len);
        defer alloc.free(rows);
        for (rows) |*value| value.* = prng.gaussian();
        const out = try alloc.alloc(f64, 2 * shape[0] * shape[1]);
        defer alloc.free(out);
        const expected = out[0 .. out.len / 2];
        const found = out[out.len / 2 ..];
        scalar.products(rows.ptr, shape[0], rows.ptr + shape[0] * len, shape[1], len, expected.ptr);
        k.products(rows.ptr, shape[0], rows.ptr + shape[0] * len, shape[1], len, found.ptr);
        for (expected, found) |a, b| try testing.expectApproxEqAbs(a, b, 1e-12 * @as(f64, @floatFromInt(len + 1)));
    }
}

fn check_quantise(k: *const dispatch.Kernels, prng: *base.Prng, x: []f32) !void {
    const dim: u32 = @intCast(x.len);
    const codes = try alloc.alloc(u16, 2 * dim);
    defer alloc.free(codes);
    for ([_][3]f32{ .{ 0.1, 0, 1 }, .{ 0.6, 7, 0.25 }, .{ 9, 127, 0.0625 }, .{ 2500, 32767, 0x1p-8 } }) |p| {
        x[@intCast(prng.below(dim))] = -0.0;
        x[@intCast(prng.below(dim))] = 0;
        var expected: abi.CodeSums = undefined;
        var found: abi.CodeSums = undefined;
        scalar.code_finish(x.ptr, dim, p[0], p[1], p[2], codes.ptr, &expected);
        k.code_finish(x.ptr, dim, p[0], p[1], p[2], codes.ptr + dim, &found);
        try testing.expectEqualSlices(u16, codes[0..dim], codes[dim..]);
        inline for (std.meta.fields(abi.CodeSums)) |field| {
            try testing.expectApproxEqRel(@field(expected, field.name), @field(found, field.name), 1e-12);
        }
    }
    const planes = try alloc.alloc(i8, 6 * dim);
    defer alloc.free(planes);
    const largest = scalar.max_magnitude(x.ptr, dim);
    try testing.expectEqual(largest, k.max_magnitude(x.ptr, dim));
    try testing.expectEqual(scalar.max_magnitude(x.ptr, dim - 1), k.max_magnitude(x.ptr, dim - 1));
    var expected: abi.QuerySums = undefined;
    var found: abi.QuerySums = undefined;
    const p = planes.ptr;
    scalar.quantise_query(x.ptr, dim, 127 / largest, 127 * 256 / largest, p, p + dim, p + 2 * dim, &expected);
    k.quantise_query(x.ptr, dim, 127 / largest, 127 * 256 / largest, p + 3 * dim, p + 4 * dim, p + 5 * dim, &found);
    try testing.expectEqualSlices(i8, planes[0 .. 3 * dim], planes[3 * dim ..]);
    try testing.expectEqual(expected.coarse, found.coarse);
    try testing.expectEqual(expected.fine, found.fine);
    try testing.expectApproxEqRel(expected.coarse_error2, found.coarse_error2, 1e-5);
}

test "sums over rows agree with the definition: every element, kind, length and address" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            const rows_max = 5;
            const len_max = 140;
            var query: [len_max]f32 = undefined;
            for (&query) |*q| q.* = prng.gaussian() * 40;
            var bytes: [rows_max * len_max * 4 + 1]u8 = undefined;
            inline for (.{ f32, f16, u8, i8 }, .{ Element.f32, Element.f16, Element.u8, Element.i8 }) |T, element| {
                for ([_]u32{ 1, 3, 15, 16, 17, 63, 64, 65, 96, 128, 140 }) |len| for ([_]u32{ 0, 1, 5 }) |count| for ([_]RowSum{ .difference2, .product, .product_and_norm2 }) |kind| {
                    const offset: usize = @intCast(prng.below(2));
                    const values: []align(1) T = std.mem.bytesAsSlice(T, bytes[offset..][0 .. rows_max * len_max * @sizeOf(T)]);
                    for (values) |*x| x.* = if (@typeInfo(T) == .float) @floatCast(prng.gaussian() * 30) else @bitCast(@as(u8, @truncate(prng.next())));
                    const none = -7;
                    var wanted: [2][rows_max]f32 = @splat(@splat(none));
                    var got: [2][rows_max]f32 = @splat(@splat(none));
                    scalar.row_sums(&query, len, element, kind, std.mem.sliceAsBytes(values).ptr, count, &wanted[0], &wanted[1]);
                    k.row_sums(&query, len, element, kind, std.mem.sliceAsBytes(values).ptr, count, &got[0], &got[1]);
                    // The effect of rounding follows from the sum of magnitudes, not from a sum that cancels.
                    const size = scalar.sum_squares(&query, len) + 128 * 128 * @as(f32, @floatFromInt(len));
                    for (0..rows_max) |j| {
                        try testing.expectApproxEqAbs(wanted[0][j], got[0][j], 1e-5 * size);
                        try testing.expectApproxEqRel(wanted[1][j], got[1][j], 1e-5);
                        if (j >= count) try testing.expectEqual(none, got[0][j]);
                    }
                };
            }
        }
    }.check);
}

test "kernels of product codes agree with the definition, to the bit" {
    try run_levels(struct {
        fn check(k: *const dispatch.Kernels, seed: u64) !void {
            var prng = base.Prng.init(seed);
            for ([_]u32{ 1, 2, 3, 8, 11, 25, 128 }) |width| {
                errdefer std.debug.print("width {}\n", .{width});
                const centroids = @as(u32, 256) >> @intCast(prng.below(4));
                const columns = try alloc.alloc(f16, width * centroids);
                defer alloc.free(columns);
                for (columns) |*value| value.* = @floatCast(prng.gaussian() * 3000);
                // The least and the largest values of f16, and centroids that are equal.
                for ([_]f16{ 0, -0.0, std.math.floatTrueMin(f16), -std.math.floatMin(f16), std.math.floatMax(f16) }) |value| columns[@intCast(prng.below(columns.len))] = value;
                for (0..width) |i| columns[i * centroids + 31] = columns[i * centroids + 7];
                const stride = width + 3;
                const rows = try alloc.alloc(f32, 9 * stride);
                defer alloc.free(rows);
                for (rows) |*x| x.* = prng.gaussian();
                for (rows[0..width], 0..) |*x, i| x.* = @as(f32, columns[i * centroids + 31]) / 4096;
                rows[stride] = 3e38;
                for ([_]RowSum{ .difference2, .product }) |kind| for (0..9) |j| {
                    var tables: [2][abi.centroids_max]f32 = @splat(@splat(7));
                    scalar.product_table(columns.ptr, centroids, width, rows.ptr + j * stride, 4096, kind, &tables[0]);
                    k.product_table(columns.ptr, centroids, width, rows.ptr + j * stride, 4096, kind, &tables[1]);
                    try testing.expectEqualSlices(f32, &tables[0], &tables[1]);
                };
                for ([_]u32{ 0, 1, 9 }) |count| {
                    var nearest: [2][10]u8 = @splat(@splat(77));
                    scalar.product_nearest(columns.ptr, centroids, width, rows.ptr, stride, count, 4096, &nearest[0]);
                    k.product_nearest(columns.ptr, centroids, width, rows.ptr, stride, count, 4096, &nearest[1]);
                    try testing.expectEqualSlices(u8, &nearest[0], &nearest[1]);
                    if (count > 0 and width > 1) try testing.expectEqual(7, nearest[1][0]);
                }
            }
            for (1..65) |parts| {
                errdefer std.debug.print("parts {}\n", .{parts});
                const table = try alloc.alloc(u16, parts * abi.centroids_max);
                defer alloc.free(table);
                for (table) |*entry| entry.* = if (parts % 3 == 0) 0xffff else @truncate(prng.next());
                for ([_]u32{ 0, 1, 2, 13, 64, 88, 127, 201 }) |count| {
                    if (count > 13 and parts % 8 > 1 and parts > 20) continue; // of these some
                    const codes = try alloc.alloc(u8, count * parts);
                    defer alloc.free(codes);
                    fill_bytes(&prng, if (parts % 5 == 0) .ones else .random, codes);
                    var sums: [2][202]u32 = @splat(@splat(4321));
                    scalar.product_scan(table.ptr, @intCast(parts), codes.ptr, count, &sums[0]);
                    k.product_scan(table.ptr, @intCast(parts), codes.ptr, count, &sums[1]);
                    try testing.expectEqualSlices(u32, &sums[0], &sums[1]);
                }
            }
        }
    }.check);
}
