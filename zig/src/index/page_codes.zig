//! page_codes.bin: a few codes of each page, with which a search begins where memory has no room for codes of vectors. They are
//! product codes; indexes of format 6, which have no tables in their pages, have upper codes and rank all pages by them.
//!
//! They are codes of centers of a page's records, which rank pages better than codes of some of the records do
//! (docs/decisions/0021). Several levels of detail follow one another, so that a budget has the finest that fits.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Header = layout.headers.PageCodes;
const ProductHeader = layout.headers.PageProducts;

comptime {
    std.debug.assert(layout.page.upper_factor_largest == quant.PositiveFloat.largest);
}

/// Product codes of a page in each level.
const product_counts = [_]u32{ 1, 3, 7 };
/// A page is as near as its nearest code, plus this share of the mean squared distance of records from that code's center
/// (docs/decisions/0024, f).
pub const spread_share = 0.4;

/// `records`: the most of a page.
pub fn product_header_of(page_count: u32, records: u32, code_bytes: u32, product_bytes: u32, code_error: f32) ProductHeader {
    var header: ProductHeader = .{
        .page_count = page_count,
        .code_bytes = code_bytes,
        .product_bytes = product_bytes,
        .level_count = 0,
        .code_error = code_error,
        .f_upper_max = 0,
        .counts = @splat(0),
        .spreads = @splat(0),
    };
    for (product_counts) |wanted| {
        const count = @min(wanted, records);
        if (header.level_count > 0 and count <= header.counts[header.level_count - 1]) continue;
        header.counts[header.level_count] = count;
        header.level_count += 1;
    }
    return header;
}

/// The part of a file of upper codes that is in memory.
pub const PageCodes = struct {
    memory: base.AlignedBytes,
    /// One a page.
    coarse: quant.Codes,
    /// `count` a page.
    fine: quant.Codes,
    count: u32,
    f_upper_max: f32,

    pub fn deinit(self: *PageCodes) void {
        self.memory.free();
    }
};

/// The part of a file of product codes that is in memory. Kernels may read 64 bytes behind each array of codes.
pub const PageProducts = struct {
    memory: base.AlignedBytes,
    product: quant.Product,
    product_bytes: u64,
    /// Codes of each page.
    count: u32,
    /// `count` codes for each page, page by page.
    codes: []const u8,
    /// A code for each cell of `cell_pages` consecutive pages.
    cell_codes: []const u8,
    /// The page whose code a cell has, counted from the cell's first page.
    cell_places: []const u8,
    /// Added to the estimate of a page code.
    spread: f32,
    /// Mean squared error of a product code.
    code_error: f32,
    /// The largest F of the upper codes of all vectors.
    f_upper_max: f32,

    pub fn deinit(self: *PageProducts, allocator: std.mem.Allocator) void {
        self.product.deinit(allocator);
        self.memory.free();
    }

    pub fn memory_bytes(self: *const PageProducts) u64 {
        return self.memory.bytes.len + self.product_bytes;
    }
};

/// A file's codes of each page in memory, in one form or the other.
pub const Loaded = union(enum) {
    uppers: PageCodes,
    products: PageProducts,

    pub fn deinit(self: *Loaded, allocator: std.mem.Allocator) void {
        switch (self.*) {
            .uppers => |*found| found.deinit(),
            .products => |*found| found.deinit(allocator),
        }
    }
};

/// Levels of a file, and what each takes in memory.
pub const Levels = struct {
    header: union(enum) { uppers: Header, products: ProductHeader },
    /// Of an upper code.
    code_bytes: u64,

    pub fn read(dir: std.fs.Dir, m: *const layout.manifest.Manifest, codes: *const layout.headers.Codes, diagnostic: *Diagnostic) Error!Levels {
        if (!m.page_codes) {
            diagnostic.argument = "plan";
            diagnostic.say("this index was built without codes of its pages (page_codes=True)", .{});
            return error.Unsupported;
        }
        const file = m.file(files.file_page_codes).?; // `open` has looked
        const code_bytes = codes.code_bytes();
        const opened = dir.openFile(file.name, .{}) catch |err| return files.open_error(diagnostic, file.name, err);
        defer opened.close();
        var head: [@sizeOf(Header)]u8 align(8) = undefined;
        const len = opened.readAll(&head) catch |err| return diagnostics.file_error(diagnostic, file.name, "read", err);
        if (len != head.len) return files.bad_file(diagnostic, file.name);
        if (!m.page_tables) {
            const header = std.mem.bytesToValue(Header, &head);
            if (!header.valid() or header.page_count != m.page_count or
                header.level(header.level_count - 1, code_bytes).end != file.bytes) return files.bad_file(diagnostic, file.name);
            return .{ .header = .{ .uppers = header }, .code_bytes = code_bytes };
        }
        const header = std.mem.bytesToValue(ProductHeader, &head);
        if (!header.valid() or header.page_count != m.page_count or header.code_bytes != m.code_bytes or
            header.file_bytes() != file.bytes) return files.bad_file(diagnostic, file.name);
        return .{ .header = .{ .products = header }, .code_bytes = code_bytes };
    }

    /// Codes of a page in each level, ascending.
    pub fn counts(self: *const Levels) []const u32 {
        return switch (self.header) {
            inline else => |*header| header.counts[0..header.level_count],
        };
    }

    /// Of codes and what goes with them: of upper codes the coarsest level precedes each other, of product codes the quantizer
    /// and cells precede any.
    pub fn memory_bytes(self: *const Levels, number: usize) u64 {
        return switch (self.header) {
            .uppers => |*header| self.upper_bytes(header, 0) + if (number > 0) self.upper_bytes(header, number) else 0,
            .products => |*header| std.mem.alignForward(u64, header.product_bytes, 64) + products_bytes(header, number),
        };
    }

    fn upper_bytes(self: *const Levels, header: *const Header, number: usize) u64 {
        const level = header.level(number, self.code_bytes);
        return std.mem.alignForward(u64, level.end - level.codes, 64);
    }

    /// The finest level that fits; null where none does.
    pub fn within(self: *const Levels, room: ?u64) ?usize {
        var number: usize = self.counts().len;
        while (number > 0) {
            number -= 1;
            if (self.memory_bytes(number) <= room orelse std.math.maxInt(u64)) return number;
        }
        return null;
    }

    fn with_count(self: *const Levels, count: u32) ?usize {
        return std.mem.indexOfScalar(u32, self.counts(), count);
    }

    /// `codes` has what codes of pages and of vectors have in common.
    pub fn load(self: *const Levels, allocator: std.mem.Allocator, dir: std.fs.Dir, file: layout.manifest.File, number: usize, dim: u32, codes: *const quant.Codes, diagnostic: *Diagnostic) Error!Loaded {
        var mapped = try files.map_checked(allocator, dir, file, diagnostic);
        defer mapped.free();
        return switch (self.header) {
            .uppers => |*header| .{ .uppers = try self.load_uppers(header, mapped.bytes, number, codes, file.name, diagnostic) },
            .products => |*header| .{ .products = try load_products(allocator, header, mapped.bytes, number, dim, file.name, diagnostic) },
        };
    }

    fn load_uppers(self: *const Levels, header: *const Header, whole: []const u8, number: usize, codes: *const quant.Codes, name: []const u8, diagnostic: *Diagnostic) Error!PageCodes {
        var memory = try base.AlignedBytes.alloc(@intCast(self.memory_bytes(number)), .{ .huge_pages = true });
        errdefer memory.free();
        const coarse = try self.place(header, whole, 0, memory.bytes, codes, name, diagnostic);
        const fine = if (number == 0) coarse else try self.place(header, whole, number, @alignCast(memory.bytes[@intCast(self.upper_bytes(header, 0))..]), codes, name, diagnostic);
        return .{ .memory = memory, .coarse = coarse, .fine = fine, .count = header.counts[number], .f_upper_max = header.f_upper_max };
    }

    fn place(self: *const Levels, header: *const Header, whole: []const u8, number: usize, memory: []align(64) u8, codes: *const quant.Codes, name: []const u8, diagnostic: *Diagnostic) Error!quant.Codes {
        const level = header.level(number, self.code_bytes);
        const bytes = memory[0..@intCast(level.end - level.codes)];
        @memcpy(bytes, whole[@intCast(level.codes)..@intCast(level.end)]);
        files.forget(whole[@intCast(level.codes)..@intCast(level.end)]);
        var placed = codes.*;
        placed.n = header.page_count * header.counts[number];
        placed.bytes = bytes;
        placed.factors = @alignCast(std.mem.bytesAsSlice(u32, bytes[@intCast(level.factors - level.codes)..][0 .. 4 * @as(usize, placed.n)]));
        placed.center_ids = bytes[@intCast(level.center_ids - level.codes)..][0..placed.n];
        if (!files.codes_valid(&placed)) return files.bad_file(diagnostic, name);
        return placed;
    }
};

/// Parts of a file of product codes that are in memory with a level, each with padding.
fn product_parts(header: *const ProductHeader, number: usize) [3]ProductHeader.Part {
    return .{ header.level(number), header.cell_codes(), header.cell_places() };
}

fn padded_bytes(part: ProductHeader.Part) u64 {
    return std.mem.alignForward(u64, part.end - part.begin + layout.headers.Codes.padding_bytes, 64);
}

fn products_bytes(header: *const ProductHeader, number: usize) u64 {
    var sum: u64 = 0;
    for (product_parts(header, number)) |part| sum += padded_bytes(part);
    return sum;
}

fn load_products(allocator: std.mem.Allocator, header: *const ProductHeader, whole: []const u8, number: usize, dim: u32, name: []const u8, diagnostic: *Diagnostic) Error!PageProducts {
    const own = header.product();
    var product = quant.Product.load(allocator, whole[@intCast(own.begin)..@intCast(own.end)]) catch |err| switch (err) {
        error.OutOfMemory => return error.OutOfMemory,
        error.BadProduct => return files.bad_file(diagnostic, name),
    };
    errdefer product.deinit(allocator);
    if (product.dim != dim or product.parts != header.code_bytes or
        product.stored_bytes() != header.product_bytes) return files.bad_file(diagnostic, name);
    var memory = try base.AlignedBytes.alloc(@intCast(products_bytes(header, number)), .{ .huge_pages = true });
    errdefer memory.free();
    var arrays: [3][]const u8 = undefined;
    var at: usize = 0;
    for (&arrays, product_parts(header, number)) |*array, part| {
        const bytes = whole[@intCast(part.begin)..@intCast(part.end)];
        const padded = memory.bytes[at..][0..@intCast(padded_bytes(part))];
        @memcpy(padded[0..bytes.len], bytes);
        @memset(padded[bytes.len..], 0);
        files.forget(bytes);
        array.* = padded[0..bytes.len];
        at += padded.len;
    }
    const codes, const cell_codes, const cell_places = arrays;
    for (cell_places, 0..) |place, cell| if (cell * ProductHeader.cell_pages + place >= header.page_count or place >= ProductHeader.cell_pages) return files.bad_file(diagnostic, name);
    return .{
        .memory = memory,
        .product = product,
        .product_bytes = std.mem.alignForward(u64, header.product_bytes, 64),
        .count = header.counts[number],
        .codes = codes,
        .cell_codes = cell_codes,
        .cell_places = cell_places,
        .spread = header.spreads[number],
        .code_error = header.code_error,
        .f_upper_max = header.f_upper_max,
    };
}

/// The level of codes of pages that is searched with.
pub const Chosen = struct {
    levels: Levels,
    file: layout.manifest.File,
    number: usize,
    /// Of codes in memory.
    bytes: u64,

    pub fn of(levels: *const Levels, m: *const layout.manifest.Manifest, header: *const layout.headers.Codes, directory_bytes: u64, memory_bytes: u64, wanted: ?u32, diagnostic: *Diagnostic) Error!Chosen {
        const file = m.file(files.file_page_codes).?; // `open` has looked
        const beside = header.codes_offset() + directory_bytes;
        const room: ?u64 = if (memory_bytes == 0) null else memory_bytes -| beside;
        const number = if (wanted) |count| levels.with_count(count) orelse {
            diagnostic.argument = "links_kept";
            diagnostic.say("links_kept is {d}; codes of each page this index has {any}", .{ count, levels.counts() });
            return error.InvalidArgument;
        } else levels.within(room) orelse 0;
        if (levels.memory_bytes(number) > room orelse std.math.maxInt(u64)) {
            diagnostic.argument = "memory";
            diagnostic.needed_bytes = beside + levels.memory_bytes(number);
            diagnostic.say("memory is {d} bytes, but codes of pages and the page directory take {d}", .{ memory_bytes, diagnostic.needed_bytes });
            return error.BudgetTooSmall;
        }
        return .{ .levels = levels.*, .file = file, .number = number, .bytes = header.codes_offset() + levels.memory_bytes(number) };
    }
};

test "levels of product codes have at most as many codes as a page has records" {
    for ([_]struct { u32, []const u32 }{ .{ 1, &.{1} }, .{ 2, &.{ 1, 2 } }, .{ 3, &.{ 1, 3 } }, .{ 4, &.{ 1, 3, 4 } }, .{ 13, &.{ 1, 3, 7 } } }) |case| {
        const records, const counts = case;
        const header = product_header_of(10, records, 16, 100, 0.5);
        try std.testing.expect(header.valid());
        try std.testing.expectEqualSlices(u32, counts, header.counts[0..header.level_count]);
    }
}
