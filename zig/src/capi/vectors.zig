//! Vectors: stored ones, or what codes tell of them, read from an open index; or added to one that was built without them (velo_vectors of velo.h).
const index = @import("index");
const common = @import("common.zig");
const std = @import("std");
const Index = @import("handle.zig").Index;
const ok = common.ok;

export fn velo_get_vectors(handle: ?*Index, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32) i32 {
    return common.status_of_call(get(handle, vertices, count, vectors_out, index.Reader.get_vectors));
}

export fn velo_decode_vectors(handle: ?*Index, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32) i32 {
    return common.status_of_call(get(handle, vertices, count, vectors_out, index.Reader.decode_vectors));
}

fn get(handle: ?*Index, vertices: ?[*]const u32, count: u64, vectors_out: ?[*]f32, comptime read: anytype) common.Failure!void {
    const self = try common.need("index", handle);
    try self.enter();
    defer self.leave();
    if (count == 0) return;
    const ids = try common.need("vertices", vertices);
    const out = try common.need("vectors_out", vectors_out);
    var diagnostic: index.Diagnostic = .{};
    read(&self.reader, ids[0..@intCast(count)], out[0..@intCast(count * self.reader.header.dim_in)], &diagnostic) catch |err|
        return common.report_index(err, &diagnostic);
}

const Vectors = struct { store: index.vectors.Store, process: i32 };

export fn velo_vectors_open(path: ?[*:0]const u8, dim: u32, dtype: i32, order: ?[*]const u32, count: u64, vectors_out: ?*?*Vectors) i32 {
    const folder = path orelse return common.null_argument("path");
    const rows = order orelse return common.null_argument("order");
    const out = vectors_out orelse return common.null_argument("vectors_out");
    const element = std.enums.fromInt(index.Dtype, dtype) orelse return common.fail(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{dtype});
    const own = common.allocator.create(Vectors) catch return common.out_of_memory();
    var diagnostic: index.Diagnostic = .{};
    const store = index.vectors.Store.open(common.allocator, std.mem.span(folder), dim, element, rows[0..@intCast(count)], &diagnostic) catch |err| {
        common.allocator.destroy(own);
        return common.fail_index(err, &diagnostic);
    };
    own.* = .{ .store = store, .process = common.process() };
    out.* = own;
    return ok;
}

export fn velo_vectors_add(vectors: ?*Vectors, rows: ?*const anyopaque, row_count: u64, row_stride: u64) i32 {
    const own = vectors orelse return common.null_argument("vectors");
    if (own.process != common.process()) return common.forked();
    if (row_count == 0) return ok;
    const bytes: [*]const u8 = @ptrCast(rows orelse return common.null_argument("rows"));
    var diagnostic: index.Diagnostic = .{};
    own.store.add(bytes, row_count, row_stride, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_vectors_commit(vectors: ?*Vectors) i32 {
    const own = vectors orelse return common.null_argument("vectors");
    if (own.process != common.process()) return common.forked();
    var diagnostic: index.Diagnostic = .{};
    own.store.commit(&diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_vectors_close(vectors: ?*Vectors) i32 {
    const own = vectors orelse return ok;
    // A child's copy: what it points to is the parent's.
    if (own.process != common.process()) return ok;
    own.store.close();
    common.allocator.destroy(own);
    return ok;
}

export fn velo_products(x: ?[*]const f64, x_count: u64, y: ?[*]const f64, y_count: u64, len: u32, out: ?[*]f64) i32 {
    if (x_count == 0 or y_count == 0) return ok;
    const rows = x orelse return common.null_argument("x");
    const columns = y orelse return common.null_argument("y");
    const into = out orelse return common.null_argument("out");
    const fits = x_count <= std.math.maxInt(u32) and y_count <= std.math.maxInt(u32);
    if (!fits) return common.fail(.invalid_argument, .{ .argument = "x_count" }, "{d} by {d} products are too many", .{ x_count, y_count });
    index.vectors.products(rows, @intCast(x_count), columns, @intCast(y_count), len, into);
    return ok;
}
