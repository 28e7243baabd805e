//! The live room: data that is written while it is searched. A folder's manifest names segments (ordinary indexes, none of whose
//! files changes), the tombstones of each, and a log; see docs/FORMAT.md.
const store = @import("store.zig");
const folder = @import("folder.zig");
const diagnostics = @import("diagnostic.zig");

/// live.page, which processes share.
pub const page = @import("page.zig");
pub const FolderStore = store.FolderStore;
pub const Stat = store.Stat;
pub const SharedFolder = store.SharedFolder;
pub const Live = folder.Live;
pub const Options = folder.Options;
pub const Built = folder.Built;
pub const Durability = folder.Durability;
pub const Done = folder.Done;
pub const Info = folder.Info;
pub const Outcome = folder.Outcome;
pub const Row = @import("delta.zig").Row;
/// In the place of a segment's number: rows of the delta.
pub const delta_segment = @import("delta.zig").segment_number;
pub const Expected = folder.Expected;
pub const Call = folder.Call;
pub const Commit = folder.Commit;
pub const View = @import("delta.zig").View;
pub const Rows = @import("rows.zig").Rows;
pub const Kind = @import("rows.zig").Kind;
pub const record_batch = @import("record_batch.zig");
pub const scan = @import("scan.zig");
pub const nearest = @import("nearest.zig");
pub const create = folder.create;
pub const CreateOptions = folder.CreateOptions;
pub const Diagnostic = diagnostics.Diagnostic;
pub const Error = diagnostics.Error;
pub const find = @import("find.zig");
pub const Ids = find.Ids;
pub const manifest = @import("manifest.zig");
pub const wal = @import("wal.zig");
pub const Moment = @import("moment.zig").Moment;
pub const verify = @import("moment.zig").verify;

test {
    _ = store;
    _ = folder;
    _ = diagnostics;
    _ = page;
    _ = find;
    _ = manifest;
    _ = wal;
    _ = @import("codes.zig");
    _ = @import("codes_test.zig");
    _ = @import("deleted.zig");
    _ = @import("delta.zig");
    _ = @import("moment.zig");
    _ = nearest;
    _ = @import("manifest.zig");
    _ = @import("record_batch.zig");
    _ = @import("rows.zig");
    _ = @import("scan.zig");
    _ = @import("live_test.zig");
    _ = @import("rows_test.zig");
    _ = @import("writers_test.zig");
}
