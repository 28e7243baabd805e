//! The live room: data that is written while it is searched. A folder's root names parts (ordinary indexes, none of whose
//! files changes), the tombstones of each, and a log; see docs/FORMAT.md.
const store = @import("store.zig");
const folder = @import("folder.zig");
const diagnostics = @import("diagnostic.zig");

pub const FolderStore = store.FolderStore;
pub const Live = folder.Live;
pub const Options = folder.Options;
pub const Built = folder.Built;
pub const Durability = folder.Durability;
pub const Done = folder.Done;
pub const Info = folder.Info;
pub const Outcome = folder.Outcome;
pub const Row = folder.Row;
/// In the place of a part's number: rows of the delta.
pub const delta_part = @import("delta.zig").part_number;
pub const Expected = @import("write.zig").Expected;
pub const Call = @import("call.zig").Call;
pub const Fold = @import("fold.zig").Fold;
pub const View = @import("view.zig").View;
pub const Rows = @import("rows.zig").Rows;
pub const Kind = @import("rows.zig").Kind;
pub const scan = @import("scan.zig");
pub const nearest = @import("nearest.zig");
pub const create = @import("create.zig").create;
pub const CreateOptions = @import("create.zig").Options;
pub const Diagnostic = diagnostics.Diagnostic;
pub const Error = diagnostics.Error;
pub const find = @import("find.zig");
pub const Ids = find.Ids;
pub const root = @import("root.zig");
pub const log = @import("log.zig");
pub const Moment = @import("moment.zig").Moment;
pub const verify = @import("verify.zig").verify;

test {
    _ = store;
    _ = folder;
    _ = diagnostics;
    _ = find;
    _ = root;
    _ = log;
    _ = @import("adopt.zig");
    _ = @import("call.zig");
    _ = @import("checkpoint.zig");
    _ = @import("columns.zig");
    _ = @import("dead.zig");
    _ = @import("create.zig");
    _ = @import("delta.zig");
    _ = @import("fold.zig");
    _ = @import("link.zig");
    _ = @import("links.zig");
    _ = @import("links_test.zig");
    _ = @import("look.zig");
    _ = @import("moment.zig");
    _ = nearest;
    _ = @import("replay.zig");
    _ = @import("requests.zig");
    _ = @import("rows.zig");
    _ = @import("scan.zig");
    _ = @import("view.zig");
    _ = @import("walk.zig");
    _ = @import("write.zig");
    _ = @import("payload.zig");
    _ = @import("verify.zig");
    _ = @import("live_test.zig");
    _ = @import("rows_test.zig");
}
