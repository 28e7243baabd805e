//! Product codes: training, codes, estimates, the stored form.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const product = @import("product.zig");
const Product = product.Product;
const ProductQuery = product.ProductQuery;
const Form = @import("encode.zig").Form;
const alloc = testing.allocator;

fn distance2(a: []const f32, b: []const f32) f64 {
    var sum: f64 = 0;
    for (a, b) |x, y| sum += (@as(f64, x) - y) * (@as(f64, x) - y);
    return sum;
}

fn inner(a: []const f32, b: []const f32) f64 {
    var sum: f64 = 0;
    for (a, b) |x, y| sum += @as(f64, x) * y;
    return sum;
}

/// Rows of normal numbers; with `rank`, combinations of as many vectors.
fn random_rows(prng: *base.Prng, n: usize, dim: usize, rank: usize) ![]f32 {
    const rows = try alloc.alloc(f32, n * dim);
    errdefer alloc.free(rows);
    if (rank == 0) {
        for (rows) |*x| x.* = prng.gaussian();
        return rows;
    }
    const directions = try random_rows(prng, rank, dim, 0);
    defer alloc.free(directions);
    @memset(rows, 0);
    for (0..n) |i| for (0..rank) |r| {
        const weight = prng.gaussian() / @as(f32, @floatFromInt(r + 1));
        for (rows[i * dim ..][0..dim], directions[r * dim ..][0..dim]) |*x, y| x.* += weight * y;
    };
    return rows;
}

/// Estimates agree with distances to decoded codes, and no code of other centroids is nearer.
fn check_codes(trained: *const Product, prng: *base.Prng, rows: []const f32) !void {
    const dim = trained.dim;
    const n = @min(100, rows.len / dim);
    const scratch = try alloc.alloc(f32, trained.scratch_len());
    defer alloc.free(scratch);
    const codes = try alloc.alloc(u8, n * trained.parts);
    defer alloc.free(codes);
    const decoded = try alloc.alloc(f32, n * dim);
    defer alloc.free(decoded);
    const other = try alloc.alloc(f32, dim);
    defer alloc.free(other);
    const estimates = try alloc.alloc(f32, n);
    defer alloc.free(estimates);
    for (0..n) |i| {
        const code = codes[i * trained.parts ..][0..trained.parts];
        const row = rows[i * dim ..][0..dim];
        trained.encode(scratch, row, code);
        trained.decode(scratch, code, decoded[i * dim ..][0..dim]);
        const found = distance2(row, decoded[i * dim ..][0..dim]);
        try testing.expect(std.math.isFinite(found));
        var changed: [Product.parts_max]u8 = undefined;
        @memcpy(changed[0..code.len], code);
        for (0..5) |_| changed[@intCast(prng.below(code.len))] = @truncate(prng.next());
        trained.decode(scratch, changed[0..code.len], other);
        // Axes are orthogonal up to the precision of f16.
        try testing.expect(found <= distance2(row, other) + 2e-3 * inner(row, row));
    }
    var query: ProductQuery = try .init(alloc, trained.parts);
    defer query.deinit(alloc);
    for ([_]Form{ .distance, .product }) |form| for (0..@min(n, 5)) |q| {
        const row = rows[q * dim ..][0..dim];
        query.prepare(trained, row, form);
        query.estimate(codes.ptr, n, estimates);
        for (estimates, 0..) |estimate, i| {
            const vector = decoded[i * dim ..][0..dim];
            const wanted = if (form == .distance) distance2(row, vector) else -2 * inner(row, vector);
            const size = inner(row, row) + inner(vector, vector);
            try testing.expectApproxEqAbs(wanted, estimate, 2e-3 * size + 1e-30 + query.step * @as(f64, @floatFromInt(trained.parts)));
        }
    };
}

test "codes of product: nearest centroids, estimates and errors, for all kinds of shapes" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    for ([_]struct { dim: u32, n: usize, rank: usize }{
        .{ .dim = 1, .n = 600, .rank = 0 },
        .{ .dim = 5, .n = 700, .rank = 2 },
        .{ .dim = 7, .n = 3, .rank = 0 },
        .{ .dim = 16, .n = 1, .rank = 0 },
        .{ .dim = 32, .n = 2000, .rank = 12 },
        .{ .dim = 128, .n = 300, .rank = 0 },
        .{ .dim = 300, .n = 600, .rank = 50 },
    }) |shape| {
        errdefer std.debug.print("{any}\n", .{shape});
        const rows = try random_rows(&prng, shape.n, shape.dim, shape.rank);
        defer alloc.free(rows);
        const parts = Product.parts_for(shape.dim);
        var trained: Product = try .train(alloc, rows, shape.dim, parts, seed);
        defer trained.deinit(alloc);
        try testing.expectEqual(parts, trained.parts);
        try check_codes(&trained, &prng, rows);
        var again: Product = try .train(alloc, rows, shape.dim, parts, seed);
        defer again.deinit(alloc);
        try testing.expectEqualSlices(f16, trained.books, again.books);
        try testing.expectEqualSlices(f16, trained.basis, again.basis);
        try testing.expectEqual(trained.error2, again.error2);
    }
}

test "a product code chooses axes where dimensions depend on each other, and dimensions where they do not" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    const dim = 64;
    const n = 3000;
    const rows = try random_rows(&prng, n, dim, 8);
    defer alloc.free(rows);
    var by_axes: Product = try .train(alloc, rows, dim, 8, seed);
    defer by_axes.deinit(alloc);
    try testing.expect(by_axes.axes >= 8 and by_axes.axes <= dim);
    try testing.expect(by_axes.error2 * n < 0.02 * inner(rows, rows));
    try check_codes(&by_axes, &prng, rows);

    // Every eight dimensions are those of one of 100 points: 100 centroids of each part have no error.
    var points: [100 * dim]f32 = undefined;
    for (&points) |*x| x.* = prng.gaussian();
    for (0..n) |i| for (0..8) |part| {
        const point: usize = @intCast(prng.below(100));
        @memcpy(rows[i * dim + part * 8 ..][0..8], points[point * dim + part * 8 ..][0..8]);
    };
    var as_given: Product = try .train(alloc, rows, dim, 8, seed);
    defer as_given.deinit(alloc);
    try testing.expectEqual(0, as_given.axes);
    try testing.expect(as_given.error2 < 1e-2 * dim);
    try check_codes(&as_given, &prng, rows);
}

test "product codes of constant rows, zeros, and the least and largest numbers are finite" {
    const dim = 24;
    const n = 300;
    var rows: [n * dim]f32 = undefined;
    for ([_]f32{ 0, 3, -1e-40, 1e-30, 1e15 }) |value| for ([_]bool{ false, true }) |mixed| {
        errdefer std.debug.print("{e} {}\n", .{ value, mixed });
        for (&rows, 0..) |*x, i| x.* = if (mixed and i % 3 == 0) -value else value;
        var trained: Product = try .train(alloc, &rows, dim, 8, 1);
        defer trained.deinit(alloc);
        var draw = base.Prng.init(1);
        try check_codes(&trained, &draw, &rows);
        try testing.expect(trained.error2 <= 2e-5 * value * value);
    };
    // Distances of these exceed f32, as with all codes.
    var prng = base.Prng.init(1);
    for (&rows) |*x| x.* = if (prng.boolean()) -3e38 else 2e38;
    var trained: Product = try .train(alloc, &rows, dim, 8, 1);
    defer trained.deinit(alloc);
    var query: ProductQuery = try .init(alloc, 8);
    defer query.deinit(alloc);
    var code: [8]u8 = undefined;
    var scratch: [Product.axes_max]f32 = undefined;
    var estimate: [1]f32 = undefined;
    for ([_]Form{ .distance, .product }) |form| {
        trained.encode(&scratch, rows[0..dim], &code);
        query.prepare(&trained, rows[dim .. 2 * dim], form);
        query.estimate(&code, 1, &estimate);
        try testing.expect(std.math.isFinite(estimate[0]));
    }
}

test "a stored product code is the same after loading, and a damaged one is refused" {
    const seed = testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    for ([_]usize{ 0, 10 }) |rank| {
        const dim = 40;
        const rows = try random_rows(&prng, 800, dim, rank);
        defer alloc.free(rows);
        var trained: Product = try .train(alloc, rows, dim, 8, seed);
        defer trained.deinit(alloc);
        const bytes = try alloc.alloc(u8, trained.stored_bytes());
        defer alloc.free(bytes);
        try testing.expect(bytes.len <= Product.stored_bytes_max(dim, 800));
        trained.store(bytes);
        var loaded: Product = try .load(alloc, bytes);
        defer loaded.deinit(alloc);
        try testing.expectEqualSlices(f16, trained.books, loaded.books);
        try testing.expectEqualSlices(f16, trained.basis, loaded.basis);
        try testing.expectEqual(trained.error2, loaded.error2);
        try testing.expectEqual(trained.exponent, loaded.exponent);

        try testing.expectError(error.BadProduct, Product.load(alloc, bytes[0 .. bytes.len - 1]));
        try testing.expectError(error.BadProduct, Product.load(alloc, bytes[0..7]));
        // A value that is not finite, in the last centroid or axis.
        const last = bytes[bytes.len - 2 ..][0..2];
        const kept = last.*;
        std.mem.writeInt(u16, last, 0x7c00, .little);
        try testing.expectError(error.BadProduct, Product.load(alloc, bytes));
        last.* = kept;
        for (0..500) |_| {
            const at: usize = @intCast(prng.below(32));
            const before = bytes[at];
            bytes[at] = @truncate(prng.next());
            if (Product.load(alloc, bytes)) |other| {
                var any = other;
                defer any.deinit(alloc);
                try testing.expect(any.parts <= Product.parts_max and any.axes <= any.dim and any.books.len == any.centroids * (if (any.axes > 0) any.axes else any.dim));
            } else |err| try testing.expectEqual(error.BadProduct, err);
            bytes[at] = before;
        }
    }
}

test "lengths of product codes by dimensions" {
    for ([_][2]u32{ .{ 1, 1 }, .{ 7, 7 }, .{ 64, 8 }, .{ 96, 16 }, .{ 128, 16 }, .{ 384, 32 }, .{ 1536, 48 }, .{ 8192, 64 } }) |pair| {
        try testing.expectEqual(pair[1], Product.parts_for(pair[0]));
    }
    for ([_]u32{ 1, 128, 1536, 8192 }) |dim| for ([_]u64{ 1, 1000, 1 << 40 }) |n| for ([_]u64{ 0, 4 << 20, std.math.maxInt(u64) }) |room_bytes| {
        const sample = Product.sample_for(n, dim, room_bytes);
        try testing.expect(sample >= 1 and sample <= @min(n, 1 << 14));
        try testing.expect(sample <= 1 << 12 or @as(u64, sample) * dim * @sizeOf(f32) <= room_bytes);
    };
}
