//! vectors.bin: the rows as they came, in placement order, in pages of their own (layout/vectors.zig). Written along
//! with the index, or added to one that is whole.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const layout = @import("layout");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const space = @import("space.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Geometry = layout.vectors.Geometry;

const name = files.file_vectors;
/// Of an index that is about to get one.
const temporary = name ++ ".tmp";

/// Writes the file from front to back.
pub const Writer = struct {
    file: files.FileWriter,
    geometry: Geometry,
    page: []u8,
    number: u32 = 0,
    rows: u32 = 0,

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, geometry: Geometry, diagnostic: *Diagnostic) Error!Writer {
        const page = try allocator.alloc(u8, geometry.page_size);
        errdefer allocator.free(page);
        @memset(page, 0);
        return .{ .file = try .create(allocator, dir, name, diagnostic), .geometry = geometry, .page = page };
    }

    pub fn deinit(self: *Writer) void {
        self.file.allocator.free(self.page);
        self.file.deinit();
    }

    pub fn add(self: *Writer, row: []const u8) Error!void {
        @memcpy(self.page[self.geometry.place_of(self.rows)..][0..row.len], row);
        self.rows += 1;
        if (self.rows == self.geometry.rows_per_page) try self.end_page();
    }

    /// Rows so far.
    pub fn count(self: *const Writer) u64 {
        return @as(u64, self.number) * self.geometry.rows_per_page + self.rows;
    }

    pub fn finish(self: *Writer) Error!files.Summary {
        if (self.rows > 0) try self.end_page();
        return self.file.finish();
    }

    fn end_page(self: *Writer) Error!void {
        self.geometry.seal(self.page, self.number);
        try self.file.write(self.page);
        @memset(self.page, 0);
        self.number += 1;
        self.rows = 0;
    }
};

/// The file of an open index.
pub const Vectors = struct {
    file: std.fs.File,
    geometry: Geometry,

    pub fn open(dir: std.fs.Dir, manifest: *const layout.manifest.Manifest, row_bytes: u32, salt: u32, diagnostic: *Diagnostic) Error!?Vectors {
        const entry = manifest.file(name) orelse return null;
        const geometry = Geometry.of(row_bytes, salt);
        if (entry.bytes != geometry.file_bytes(manifest.n)) {
            diagnostic.in_file(name, "{s} has {d} bytes, its rows take {d}", .{ name, entry.bytes, geometry.file_bytes(manifest.n) });
            return error.Corrupt;
        }
        const file = dir.openFile(name, .{}) catch |err| return files.open_error(diagnostic, name, err);
        return .{ .file = file, .geometry = geometry };
    }

    pub fn close(self: *const Vectors) void {
        self.file.close();
    }

    /// Reads a page and checks it; one that is damaged is read again, in case that was the transfer's fault.
    pub fn read_page(self: *const Vectors, number: u32, page: []u8, diagnostic: *Diagnostic) Error!void {
        for (0..2) |_| {
            const len = self.file.preadAll(page, self.geometry.offset_of(number)) catch |err| {
                diagnostic.page = number;
                return diagnostics.file_error(diagnostic, name, "read", err);
            };
            if (len == page.len) if (self.geometry.check(page, number)) return else |_| {};
        }
        diagnostic.in_file(name, "page {d} of {s} is damaged", .{ number, name });
        diagnostic.page = number;
        return error.Corrupt;
    }

    /// The rows of these vertices as float32, one after the other.
    pub fn read(self: *const Vectors, allocator: std.mem.Allocator, dtype: space.Dtype, vertices: []const u32, out: []f32, diagnostic: *Diagnostic) Error!void {
        if (vertices.len == 0) return;
        const dim = out.len / vertices.len;
        // Aligned for a file that bypasses the page cache.
        const page = try allocator.alignedAlloc(u8, .fromByteUnits(base.memory.page_size), self.geometry.page_size);
        defer allocator.free(page);
        var at_hand: ?u32 = null;
        for (vertices, 0..) |vertex, i| {
            const number = self.geometry.page_of(vertex);
            if (at_hand != number) {
                at_hand = null;
                try self.read_page(number, page, diagnostic);
                at_hand = number;
            }
            space.convert(dtype, self.geometry.row(page, vertex), out[i * dim ..][0..dim]);
        }
    }
};

/// Adds the file to an index that is whole, from its rows as they were given to the build: each goes to its place in a
/// file beside the others; once that is complete and synced it gets its name, and then a manifest names it. Whoever
/// opens the folder meanwhile, or after a kill, finds the index without vectors, or with all of them.
pub const Store = struct {
    allocator: std.mem.Allocator,
    dir: std.fs.Dir,
    parsed: layout.manifest.Parsed,
    file: std.fs.File,
    geometry: Geometry,
    /// The vertex of every row.
    vertices: []u32,
    added: u64 = 0,
    committed: bool = false,

    /// `order` holds the row of every vertex.
    pub fn open(allocator: std.mem.Allocator, path: []const u8, dim: u32, dtype: space.Dtype, order: []const u32, diagnostic: *Diagnostic) Error!Store {
        var dir = std.fs.cwd().openDir(path, .{ .iterate = true }) catch |err| {
            diagnostic.say("{s} is no index: {t}", .{ path, err });
            return error.NotAnIndex;
        };
        errdefer dir.close();
        var parsed = try files.read_manifest(allocator, dir, path, diagnostic);
        errdefer parsed.deinit();
        const m = &parsed.value;
        if (m.file(name) != null) {
            diagnostic.argument = "path";
            diagnostic.say("{s} stores its vectors already", .{path});
            return error.InvalidArgument;
        }
        if (dim != m.dim or !std.mem.eql(u8, @tagName(dtype), m.dtype)) {
            diagnostic.argument = "vectors";
            diagnostic.say("the rows are {d} of {t}, those of the index {d} of {s}", .{ dim, dtype, m.dim, m.dtype });
            return error.InvalidArgument;
        }
        if (m.dim == 0 or m.dim > base.limits.dim_max) return files.bad_manifest(diagnostic, "dim");
        const vertices = try vertices_of(allocator, order, m.n, diagnostic);
        errdefer allocator.free(vertices);
        const geometry = Geometry.of(dim * dtype.bytes(), try salt_of(dir, diagnostic));
        const file = dir.createFile(temporary, .{ .truncate = true, .read = true }) catch |err|
            return diagnostics.file_error(diagnostic, temporary, "create", err);
        errdefer {
            file.close();
            dir.deleteFile(temporary) catch {};
        }
        file.setEndPos(geometry.file_bytes(m.n)) catch |err| return diagnostics.file_error(diagnostic, temporary, "write", err);
        return .{ .allocator = allocator, .dir = dir, .parsed = parsed, .file = file, .geometry = geometry, .vertices = vertices };
    }

    /// Without a commit nothing is left of it.
    pub fn close(self: *Store) void {
        self.file.close();
        if (!self.committed) self.dir.deleteFile(temporary) catch {};
        self.allocator.free(self.vertices);
        self.parsed.deinit();
        self.dir.close();
    }

    /// The next rows, in the order in which the build had them.
    pub fn add(self: *Store, rows: [*]const u8, count: u64, stride: u64, diagnostic: *Diagnostic) Error!void {
        if (count > self.vertices.len - self.added) {
            diagnostic.argument = "rows";
            diagnostic.say("{d} rows are more than the {d} of the index", .{ self.added + count, self.vertices.len });
            return error.InvalidArgument;
        }
        for (0..@intCast(count)) |i| {
            const vertex = self.vertices[@intCast(self.added)];
            const at = self.geometry.offset_of(self.geometry.page_of(vertex)) + self.geometry.place_of(vertex);
            self.file.pwriteAll(rows[@intCast(i * stride)..][0..self.geometry.row_bytes], at) catch |err|
                return diagnostics.file_error(diagnostic, temporary, "write", err);
            self.added += 1;
        }
    }

    pub fn commit(self: *Store, diagnostic: *Diagnostic) Error!void {
        if (self.added != self.vertices.len) {
            diagnostic.argument = "rows";
            diagnostic.say("{d} rows were given, the index has {d}", .{ self.added, self.vertices.len });
            return error.InvalidArgument;
        }
        try self.seal(diagnostic);
        self.file.sync() catch |err| return diagnostics.file_error(diagnostic, temporary, "sync", err);
        const summary = files.summarize_first(self.allocator, self.file, std.math.maxInt(u64)) catch |err|
            return diagnostics.file_error(diagnostic, temporary, "read", err);
        const arena = self.parsed.arena.allocator();
        const m = &self.parsed.value;
        const sum = layout.manifest.checksum_text(summary.checksum);
        const entries = try arena.alloc(layout.manifest.File, m.files.len + 1);
        @memcpy(entries[0..m.files.len], m.files);
        entries[m.files.len] = .{ .name = name, .bytes = summary.bytes, .checksum = &sum };
        m.files = entries;
        m.stores_vectors = true;
        const text = try layout.manifest.write(arena, m);
        self.dir.rename(temporary, name) catch |err| return diagnostics.file_error(diagnostic, name, "rename", err);
        self.committed = true;
        try files.replace(self.dir, layout.manifest.file_name, text, diagnostic);
    }

    fn seal(self: *Store, diagnostic: *Diagnostic) Error!void {
        const page = try self.allocator.alloc(u8, self.geometry.page_size);
        defer self.allocator.free(page);
        for (0..@intCast(self.geometry.page_count(self.vertices.len))) |i| {
            const number: u32 = @intCast(i);
            const at = self.geometry.offset_of(number);
            const len = self.file.preadAll(page, at) catch |err| return diagnostics.file_error(diagnostic, temporary, "read", err);
            if (len != page.len) return diagnostics.file_error(diagnostic, temporary, "read", error.EndOfStream);
            self.geometry.seal(page, number);
            self.file.pwriteAll(page[0..layout.vectors.header_bytes], at) catch |err|
                return diagnostics.file_error(diagnostic, temporary, "write", err);
        }
    }
};

fn vertices_of(allocator: std.mem.Allocator, order: []const u32, n: u64, diagnostic: *Diagnostic) Error![]u32 {
    const none = std.math.maxInt(u32);
    const vertices = try allocator.alloc(u32, order.len);
    errdefer allocator.free(vertices);
    @memset(vertices, none);
    for (order, 0..) |row, vertex| {
        if (row >= order.len or vertices[row] != none) break;
        vertices[row] = @intCast(vertex);
    } else if (order.len == n) return vertices;
    diagnostic.argument = "order";
    diagnostic.say("order does not name each of the {d} rows once", .{n});
    return error.InvalidArgument;
}

fn salt_of(dir: std.fs.Dir, diagnostic: *Diagnostic) Error!u32 {
    var header: layout.headers.Pages = undefined;
    const file = dir.openFile(files.file_pages, .{}) catch |err| return files.open_error(diagnostic, files.file_pages, err);
    defer file.close();
    const len = file.readAll(std.mem.asBytes(&header)) catch |err| return diagnostics.file_error(diagnostic, files.file_pages, "read", err);
    if (len != @sizeOf(layout.headers.Pages) or header.checksum != base.checksum(std.mem.asBytes(&header)[16..]))
        return files.bad_file(diagnostic, files.file_pages);
    return header.salt;
}

/// out[i·y_count + j] = Σ x_i·y_j, for who measures what searches find.
pub fn products(x: [*]const f64, x_count: u32, y: [*]const f64, y_count: u32, len: u32, out: [*]f64) void {
    quant.kernels().products(x, x_count, y, y_count, len, out);
}
